// Package message holds the protobuf records of the helper rings. Sizes are bounded by the ring's
// slot, see package ring.
package message

//go:generate protoc -I. --go_out=. --go_opt=paths=source_relative --plugin=protoc-gen-go=../../bin/protoc-gen-go message.proto
