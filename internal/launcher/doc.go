// Package launcher starts the processes of one cell and keeps them running: meshd, which decides,
// and the helpers, which act. It only orchestrates processes. It opens no network socket, holds no
// cluster state and parses nothing that comes from the network (F134).
//
// # Processes
//
// Each child inherits a supply socket (package ipc/supply) and is told its number with --supply-fd.
// Whenever meshd and a helper are both up and one of them is new, the launcher makes a fresh stream
// socket pair and sends one end to each. A child that exits is started again after a pause that
// doubles from 100 ms to 10 s and starts over once a run has lasted half a minute. If the launcher
// itself is killed, every child sees end of file on its supply socket and exits; workloads live on
// and are adopted at the next start.
//
// What a child's exit status means (constants in ipc/supply):
//
//	meshd 3     the cell has left its cluster: the launcher stops the helpers and ends as well
//	any 2       the configuration is wrong, trying again cannot help: meshd ends the launcher, a
//	            helper stays down and the cell runs without it
//	otherwise   started again
//
// # Directories
//
// The state root belongs to the user who starts the launcher, normally root. Below it each process
// has a directory of its own, so that meshd, which reads the network, cannot rename or replace what
// a root helper trusts: <root>/meshd (mode 0700, owned by meshd's user) and <root>/<helper>. The
// command socket lies in the run directory, which belongs to meshd's user, mode 0750 (F135).
// <root>/launcher.lock is held by flock for the life of the launcher and names its process.
//
// # Privileges
//
// As root, meshd runs as another user without any capability: its bounding set is emptied, its
// supplementary groups are dropped and no_new_privs is set. A helper keeps root with the capabilities
// its Confinement lists. Without root, everything runs as the user who started it.
package launcher
