package caller_test

import (
	"fmt"

	"colloid.net/ipc/caller"
	"colloid.net/ipc/invoke"
)

// The example of docs/wasm.md.
func ExampleCaller() {
	sum := func() error {
		thumbs, err := caller.Open("/run/colloid/colloid.sock", "thumbs")
		if err != nil {
			return err
		}
		defer thumbs.Close()
		result, err := thumbs.Call(&invoke.Invocation{Function: "add", Arguments: [][]byte{[]byte("2"), []byte("3")}})
		if err == nil {
			fmt.Printf("%s\n", result.Output)
		}
		return err
	}
	if err := sum(); err != nil {
		fmt.Println(err)
	}
}
