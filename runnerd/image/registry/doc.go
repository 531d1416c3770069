// Package registry is the process `runnerd fetch`: it talks to one registry, or downloads one module, and
// ends (F146). It also reads the host's file of credentials, on runnerd's side.
//
// Nouns. A Job says what to fetch and what the policy allows; it comes in the first packet. The process
// asks for a descriptor per blob (Message) and gets one with how much of it is there (Grant). It opens no
// file itself. It runs as a user of its own without capabilities, no_new_privs, and ends when runnerd does.
//
// What it may reach: HTTPS, plain HTTP for registries that the policy lists with http; addresses of the
// public internet, others for registries that the policy lists with private. Both are checked for every
// connection, after the name was resolved, and with every redirect. Credentials go to the host that they
// belong to, and to token servers that the file of credentials names beside it; never to another.
//
// Limits: those of package manifest for sizes; a Job takes at most an hour; a connection on which nothing
// comes for 30 s is given up; an interrupted blob goes on where it ended, five times without progress.
package registry
