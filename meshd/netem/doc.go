// Package netem measures streams of real cells over a link that the kernel itself slows down, beside kernel
// TCP on the same link. It is for tests and benchmarks: nothing of it is installed.
//
// Nouns. A Link is two ends, each a network namespace, with a router between them: a third namespace, whose
// devices hold every packet back for half a round trip and lose some of them (queueing discipline netem). A
// Pair is two cells of this process, one at each end, that know each other. A Transfer says how much arrived,
// in which time, and how busy the processors were meanwhile.
//
// The router is there because hosts hand the kernel many datagrams at once (segmentation offload): netem in
// the same namespace would delay and lose them all together. Between two devices that take single packets
// only, every packet has its own chance.
//
// It needs root and a kernel with sch_netem, as that of make vm. Namespaces have no names: they go with the
// process.
package netem
