// Package sandbox makes the world in which a container or a Wasm worker runs (F138, F139), without an
// external runtime and without cgo.
//
//	shim ──clone──▶ stage = init, process 1 of new namespaces ──fork──▶ the workload
//
// Nouns. A Config says what the world looks like. The Host is what the shim opens as root before it
// forks the stage: mounts are detached copies passed as descriptors, so that the stage needs no right
// to any path of the host. The stage, already inside the new namespaces, puts them together and leaves
// the old root (Enter). It then either becomes the workload itself or stays as its init: it collects
// zombies, passes signals on, keeps the exit status and starts further processes inside (Exec) for
// whoever can open the socket in the instance's directory.
//
// Most of it can be done before it is known for whom (spare.go).
//
// What holds always, whatever the specification and the policy say: a user namespace with 65,536 ids
// of the instance's own, no_new_privs, the system call filter of package seccomp, private mounts,
// /proc with masked and read-only parts, a /dev of eleven entries, no descriptor of anybody else.
//
// Limits: FilesMax files of FileSizeMax bytes in all, MountsMax mounts, ExecsMax further processes at a
// time. Linux 5.19 or newer.
package sandbox
