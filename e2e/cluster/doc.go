// Package cluster runs real cells on one machine, for the demo, the end-to-end tests and the cluster
// benchmarks. A cell here is what it is in the field: launcher, meshd, runnerd and the workloads
// they start, as separate processes with a state directory of their own.
//
// # Two kinds of network
//
// As root every cell has a network namespace; they meet on a bridge in one more namespace, the
// switch, from which the operator's HTTP requests also come. Nothing touches the host's own network
// and a cell's link can be cut. Without root the cells share the host's loopback interface as
// 127.0.0.1, 127.0.0.2 and so on, and Cut is not possible.
//
// # Finding every process of a cell
//
// A cell is started by a keeper, a copy of the calling program that becomes the reaper of orphans
// (PR_SET_CHILD_SUBREAPER): however a helper detaches its workloads, they stay below the keeper.
// Together with the namespace and with the state directory in command lines this finds all of a
// cell's processes, which is what killing a machine and cleaning up need. A program that uses this
// package calls RunKeeper first thing in main, or in TestMain.
//
// Close ends everything and Leftovers proves it. Describe and Stop let another process do the same
// for a cluster that was left running.
package cluster
