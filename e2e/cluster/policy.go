package cluster

import (
	"os"
	"path/filepath"
)

func (c *Cluster) policyPath() string { return filepath.Join(c.Directory, "policy") }

// writePolicy allows exactly the installed workload programs on every host (decision D2).
func (c *Cluster) writePolicy() error {
	text := ""
	for _, name := range c.options.Programs {
		text += "process " + c.Program(name) + "\n"
	}
	return os.WriteFile(c.policyPath(), []byte(text), 0o644)
}
