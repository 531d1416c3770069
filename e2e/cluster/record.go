package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// recordName is the file that describes a cluster for whoever has to stop it later.
const recordName = "cluster.json"

// record is what another process needs to know to clean up.
type record struct {
	Namespaces []string     `json:"namespaces"`
	Cells      []cellRecord `json:"cells"`
}

type cellRecord struct {
	Name      string `json:"name"`
	Directory string `json:"directory"`
	Keeper    int    `json:"keeper"`
}

// describe writes the record; it is kept up to date so that a killed demo can be cleaned up too.
func (c *Cluster) describe() error {
	r := record{Namespaces: c.network.names()}
	for _, cell := range c.Cells {
		r.Cells = append(r.Cells, cellRecord{cell.Name, cell.Directory, cell.membership().keeper})
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(c.Directory, recordName)
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Find lists the directories of clusters with this name, running or left behind.
func Find(name string) []string {
	found, err := filepath.Glob(filepath.Join(os.TempDir(), name+"-*", recordName))
	if err != nil {
		return nil
	}
	for i, path := range found {
		found[i] = filepath.Dir(path)
	}
	return found
}

// Stop ends and removes a cluster that another process started. Only clusters of the caller's own
// user are touched.
func Stop(directory string) error {
	if err := ownedByUs(directory); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(directory, recordName))
	if err != nil {
		return err
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("%s: %w", directory, err)
	}
	var problems []error
	for _, cell := range r.Cells {
		m := membership{directory: cell.Directory}
		if keeperOf(cell.Keeper, cell.Directory) {
			m.keeper = cell.Keeper
		}
		for _, name := range r.Namespaces {
			if inode, err := namespaceInode(name); err == nil {
				m.namespace = fmt.Sprintf("net:[%d]", inode)
				problems = append(problems, m.killAll())
			}
		}
		legacy := legacyGroups(m.find())
		problems = append(problems, m.killAll(), unmountBelow(cell.Directory), removeGroups(legacy))
	}
	for _, name := range r.Namespaces {
		if within(name, directory) {
			problems = append(problems, deleteNamespace(name))
		}
	}
	problems = append(problems, removeControlGroups(directory), os.RemoveAll(directory))
	return errors.Join(append(problems, leftoverError(Leftovers(directory)))...)
}

// keeperOf guards against a process id that was used again: a keeper names its cell's directory.
func keeperOf(id int, directory string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id))
	return err == nil && slices.Contains(strings.Split(string(line), "\x00"), directory)
}

func leftoverError(left []string) error {
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("left behind: %s", strings.Join(left, "; "))
}
