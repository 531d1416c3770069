package cli

import "colloid.net/ipc/uds"

// chain follows one replica, and whoever takes its place. A number of status belongs to a place in a list
// that changes when others come and go, so the number counts once, at the beginning.
type chain struct {
	key     string
	current instance
	index   int  // its number now
	away    bool // it has gone, and nobody has taken its place
	// others were there when current was found, and beside those when it was well the last time: no successors
	// of it.
	others, beside map[instance]bool
	// former are those that were followed before, the last one last: one of them may come back and its
	// successor go.
	former []instance
}

// chainMax bounds the replicas that are remembered.
const chainMax = 64

func newChain(r *replica, key string, status *uds.Status) *chain {
	c := &chain{key: key, current: r.instance(), index: r.index}
	c.others = instancesOf(replicasOf(status, key))
	c.beside = c.others
	return c
}

func instancesOf(all []replica) map[instance]bool {
	of := map[instance]bool{}
	for i := range all {
		of[all[i].instance()] = true
	}
	return of
}

// next gives the replica to follow in a new status, nil while there is none, and what is to be said about it.
func (c *chain) next(status *uds.Status) (*replica, string) {
	all := replicasOf(status, c.key)
	var current *replica
	for i := range all {
		if all[i].instance() == c.current {
			current = &all[i]
		}
	}
	if current != nil && current.info.State != "unreachable" {
		remark := ""
		if c.away || current.index != c.index {
			before := replica{key: c.key, index: c.index}
			remark = before.name() + " is now " + current.name()
		}
		c.index, c.away, c.beside = current.index, false, instancesOf(all)
		return current, remark
	}
	before := replica{key: c.key, index: c.index}
	if r := c.successor(all, current != nil); r != nil {
		c.former = append(c.former[max(0, len(c.former)+1-chainMax):], c.current)
		c.current, c.index, c.away = r.instance(), r.index, false
		c.others = instancesOf(all)
		c.beside = c.others
		return r, before.name() + " goes on as " + r.name() + " on " + hostOf(status, r.info.Cell)
	}
	if current != nil {
		return current, ""
	}
	if c.away {
		return nil, ""
	}
	c.away = true
	return nil, before.name() + " has gone: waiting for another one in its place"
}

// successor chooses among those that came later, nearest first, and then among those that were followed
// before. Where current only does not answer, later is after that: it may come back.
func (c *chain) successor(all []replica, silent bool) (best *replica) {
	score := 0
	for i := range all {
		r := &all[i]
		id := r.instance()
		n := 1
		switch {
		case id == c.current || r.info.State == "unreachable":
			continue
		case id.cell == c.current.cell && id.digest != c.current.digest: // an update of it
			if n = 3; id.slot == c.current.slot {
				n = 4
			}
		case c.others[id] || silent && c.beside[id]:
			continue
		case id.cell == c.current.cell:
			n = 2
		}
		if n > score {
			best, score = r, n
		}
	}
	if best != nil {
		return best
	}
	for i := len(c.former) - 1; i >= 0; i-- {
		for j := range all {
			if all[j].instance() == c.former[i] && all[j].info.State != "unreachable" {
				return &all[j]
			}
		}
	}
	return nil
}

func replicasOf(status *uds.Status, key string) []replica {
	all, _ := (&reference{index: -1}).find(status, key)
	return all
}
