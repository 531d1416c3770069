// Package wasm is the worker process of one Wasm instance (section 13.5): the program "runnerd
// wasm-worker". runnerd starts it through a shim like any other workload; it never runs in a process that
// holds anything but its own module (F142).
//
// The nouns: Settings is what runnerd tells the worker, over a descriptor. Prepare checks a module and,
// in deterministic mode, rewrites it (F143). An engine compiles it with wazero and makes instances. A
// worker serves the connection to meshd (package ipc/invoke): it runs invocations one after the other and
// asks for the workload's key-value space. Host functions are what a module can ask for beyond WASI
// preview 1; docs/wasm.md is their reference.
//
// Ownership: whoever holds worker.executor runs the module and touches its instances. That is the goroutine that
// empties the queue of invocations that came through meshd, or one that serves a channel, a client's own way to
// the worker. One goroutine reads the connection to meshd; it hands invocations over in a queue of
// invoke.InvocationsMax and answers to whoever waits for them. Another accepts connections; a new one replaces the
// old, and ends its channels.
//
// What bounds a module: pages of memory (Settings.MemoryPages), 2^20 elements of a table, 64 MiB of
// binary, a minute to compile, ten seconds to start (a service's _start has no bound), its deadline, and
// around everything the control group and the sandbox that runnerd made. The process gives up what it does
// not need itself as well: it filters its own system calls before it looks at the module.
package wasm
