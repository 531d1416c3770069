// Package e2e holds the end-to-end tests: real programs, real processes, real networks, driven through
// the command line as an operator would. See package cluster for how the cells are run. The tests take
// a minute or two; `go test -short` leaves them out.
package e2e
