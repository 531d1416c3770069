// Package store is the process `runnerd images`: images, their layers, and the root file systems of
// containers. Unpacking and id-mapping are go.podman.io/storage's. runnerd starts it when the first image is
// asked for; it ends when nobody asked for anything for a while, so that neither its code nor its memory
// is part of a runnerd that runs no containers.
//
// Nouns. A Store is one directory:
//
//	blobs/    what came from a registry and is not unpacked yet, by digest; runnerd's
//	layers/   unpacked layers by chain id; their names depend on all layers below
//	images/   one record per image, by the digest that workloads name
//	roots/    one directory per mounted root file system, by name of the instance
//
// The requests of runnerd come as packets (ipc/packet) of rpc.go, the answers go back the same way. Both
// are bounded: RequestsMax requests at a time, ImagesMax images, RootsMax roots.
//
// Rights. The process has no network (a network namespace of its own), no_new_privs, and of root's
// capabilities those of capabilitiesKept, each with its reason there. Layers are unpacked by a child of
// the library's that first changes its root directory to the layer, from a stream that package layer has
// written anew (F140).
//
// Nothing is left behind by a refusal, nor by kill -9: a layer is unpacked under another name and renamed
// when it is whole and on disk, an image exists only when its record is written, after all its layers,
// and what is staged or belongs to no image is removed when a Store opens.
package store
