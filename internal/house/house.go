// Package house holds the house rules as tests over the source tree: which way imports point, that the
// protocol parts do no I/O, that every package says what it is, how long functions and files get. A
// broken rule fails `go test` with the reason, and exceptions are listed here where a review sees
// them. The package has no code that anything imports.
package house
