package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func (c *Cluster) policyPath(cell int) string {
	if slices.Contains(c.options.Denied, cell) {
		return filepath.Join(c.Directory, "policy.denied")
	}
	return filepath.Join(c.Directory, "policy")
}

// writePolicy allows exactly the installed workload programs on every host (decision D2), on any
// unprivileged port.
func (c *Cluster) writePolicy() error {
	var text strings.Builder
	for _, name := range c.options.Programs {
		fmt.Fprintf(&text, "process %s {\n    sha256 any\n    port 1024-65535\n    args any\n    env any\n}\n",
			c.Program(name))
	}
	if len(c.options.Modules) > 0 {
		text.WriteString("wasm {\n")
		for _, name := range c.options.Modules {
			fmt.Fprintf(&text, "    module %s\n", c.Program(name))
		}
		text.WriteString("}\n")
	}
	denied := "process /bin/true {\n    sha256 any\n}\n" // something else is allowed
	return errors.Join(os.WriteFile(filepath.Join(c.Directory, "policy"), []byte(text.String()), 0o644),
		os.WriteFile(filepath.Join(c.Directory, "policy.denied"), []byte(denied), 0o644))
}
