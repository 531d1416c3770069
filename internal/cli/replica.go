package cli

import (
	"fmt"
	"strconv"
	"strings"

	"colloid.net/ipc/attach"
	"colloid.net/ipc/uds"
)

// replica is one instance of a workload, as status numbers them.
type replica struct {
	key   string
	index int
	info  uds.InstanceInfo
}

// instance identifies a replica however the others come and go.
type instance struct {
	cell, digest string
	slot         int
}

func (r *replica) instance() instance { return instance{r.info.Cell, r.info.Digest, r.info.Slot} }

// name is what people type: web/2.
func (r *replica) name() string {
	_, name, _ := strings.Cut(r.key, ".")
	return fmt.Sprintf("%s/%d", printable(name), r.index)
}

func (r *replica) cellID() uint64 {
	id, _ := strconv.ParseUint(r.info.Cell, 16, 64)
	return id
}

// request begins a request about this replica.
func (r *replica) request() *attach.Request {
	return &attach.Request{Key: r.key, Slot: uint16(r.info.Slot), Digest: r.info.Digest}
}

// reference is a parsed WORKLOAD, WORKLOAD/INDEX or WORKLOAD@CELL.
type reference struct {
	workload string
	index    int // -1: none
	cell     string
}

func parseReference(text string) (reference, error) {
	r := reference{workload: text, index: -1}
	if before, after, found := strings.Cut(text, "@"); found {
		r.workload, r.cell = before, after
		if after == "" {
			return r, fail(ExitUsage, "%.80q names no cell behind the @", text)
		}
	} else if before, after, found := strings.Cut(text, "/"); found {
		n, err := strconv.Atoi(after)
		if err != nil || n < 0 || strconv.Itoa(n) != after {
			return r, fail(ExitUsage, "%.80q: expected WORKLOAD/INDEX with a number from status, or WORKLOAD@CELL", text)
		}
		r.workload, r.index = before, n
	}
	return r, nil
}

// known is an error if there is no such workload. A full key is not looked up before.
func known(status *uds.Status, key string) error {
	for _, w := range status.Workloads {
		if w.Key == key {
			return nil
		}
	}
	return fail(ExitError, "no workload is named %s: see colloid status", printable(key))
}

// name is the reference as people type it, with what is short of the key.
func (r *reference) name(key string) string {
	_, name, _ := strings.Cut(key, ".")
	return printable(name + "@" + r.cell)
}

// find gives the replicas that a reference means.
func (r *reference) find(status *uds.Status, key string) ([]replica, error) {
	var all []replica
	for _, w := range status.Workloads {
		if w.Key == key {
			for i, info := range w.Instances {
				all = append(all, replica{key: key, index: i, info: info})
			}
		}
	}
	switch {
	case r.cell != "":
		cell, err := findCell(status.Cells, r.cell)
		if err != nil {
			return nil, err
		}
		var there []replica
		for _, one := range all {
			if one.info.Cell == cell.ID {
				there = append(there, one)
			}
		}
		return there, nil
	case r.index >= len(all) && len(all) == 0:
		return nil, fail(ExitError, "%s runs nowhere yet: `colloid explain %s` says why", printable(key), printable(key))
	case r.index >= 1 && len(all) == 1:
		return nil, fail(ExitError, "%s has no replica %d, only %s: see colloid status", printable(key), r.index, all[0].name())
	case r.index >= len(all):
		return nil, fail(ExitError, "%s has no replica %d, only %d (%s to %s): see colloid status", printable(key), r.index,
			len(all), all[0].name(), all[len(all)-1].name())
	case r.index >= 0:
		return all[r.index : r.index+1], nil
	}
	return all, nil
}

// one gives the single replica that a reference means.
func (a *app) one(s *session, text string) (*replica, *uds.Status, error) {
	r, err := parseReference(text)
	if err != nil {
		return nil, nil, err
	}
	key, err := s.fullKey(r.workload)
	if err != nil {
		return nil, nil, err
	}
	status, err := s.status(false)
	if err != nil {
		return nil, nil, err
	}
	if err := known(status, key); err != nil {
		return nil, nil, err
	}
	found, err := r.find(status, key)
	switch {
	case err != nil:
		return nil, nil, err
	case len(found) == 0:
		return nil, nil, fail(ExitError, "%s runs nowhere yet: `colloid explain %s` says why", printable(text), printable(key))
	case len(found) > 1:
		return nil, nil, fail(ExitUsage, "%s means %d replicas: write %s to %s", printable(text), len(found),
			found[0].name(), found[len(found)-1].name())
	}
	return &found[0], status, nil
}

// hostOf names the cell of a replica as people know it.
func hostOf(status *uds.Status, id string) string {
	for _, c := range status.Cells {
		if c.ID == id && c.Hostname != "" {
			return printable(c.Hostname)
		}
	}
	return shortID(id)
}
