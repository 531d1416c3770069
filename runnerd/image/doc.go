// Package image gives runnerd images, root file systems of containers and Wasm modules (issue of the
// runtimes; F76, F77, F84, F139, F140, F146, F147).
//
// Nouns. A Client is runnerd's side: it holds no image, only the state of pulls under way. Two kinds of
// child do the work, so that runnerd itself neither reads what strangers wrote nor links its memory to it:
//
//   - `runnerd images` (package store) unpacks, mounts and removes. One at a time, started by the first
//     request, gone when idle. No network.
//   - `runnerd fetch` (package registry) talks to registries. One per pull, as a user of its own without
//     any capability. It sees no file but the descriptors it is given, one per blob.
//
// A pull: the fetcher names the blobs that it needs; the Client opens a file in blobs/ for each, limits
// its size, and passes the descriptor; what is already there goes on where it ended. When all are there
// and the fetcher has ended, the store unpacks them and compares every digest again, since nothing that
// the fetcher says counts.
//
// Bounds: pullsAtOnce pulls at a time, one per digest however many instances wait for it; the queue is
// bounded by the policy's instances. One that is slow gives its place to those that wait (turns.go). Sizes are
// those of packages manifest and layer, modules have at most ModuleSizeMax bytes. All of it needs root but Module,
// which works for any user.
package image
