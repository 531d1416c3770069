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
	return filepath.Join(c.Directory, fmt.Sprintf("policy.%d", cell+1))
}

// writePolicies allows exactly the installed workload programs on every host (decision D2), on any
// unprivileged port, unless the options say otherwise.
func (c *Cluster) writePolicies() error {
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
	var problems []error
	for cell := range c.options.Cells {
		policy, err := text.String()+c.options.PolicyLines, error(nil)
		switch {
		case c.options.Policy != nil:
			policy, err = c.options.Policy(c, cell)
		case slices.Contains(c.options.Denied, cell):
			policy = "process /bin/true {\n    sha256 any\n}\n" // something else is allowed
		}
		problems = append(problems, err, c.WritePolicy(cell, policy))
	}
	return errors.Join(problems...)
}

// WritePolicy replaces the policy of a cell, at once for whoever reads it.
func (c *Cluster) WritePolicy(cell int, text string) error {
	path := c.policyPath(cell)
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
