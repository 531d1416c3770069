package crdt

// View is the Merkle tree as it was when the view was taken. A session compares with it, so that
// writes during the session cannot make it chase a moving root (F52). It shares leaf digests with the
// store until they change, and costs 8 KiB plus 1 KiB per block of 128 leaves that changes meanwhile.
type View struct {
	tree
	owner *merkle
}

// View freezes the present digests. Release it when the session is over.
func (s *Store) View() *View {
	s.rehash()
	m := &s.merkle
	var v *View
	if n := len(m.views); n > 0 {
		v = m.views[n-1]
		m.views = m.views[:n-1]
	} else {
		v = new(View)
	}
	v.tree, v.owner = m.tree, m
	for _, b := range v.blocks {
		if b != nil {
			b.references++
		}
	}
	return v
}

// Root returns the digest of the whole state as it was.
func (v *View) Root() uint64 { return v.nodes[1] }

// Level appends the digests of the 2^levels nodes that lie levels below the node (depth, prefix).
// It panics if there is no such node.
func (v *View) Level(depth, prefix, levels int, dst []uint64) []uint64 {
	return v.level(depth, prefix, levels, dst)
}

// Node returns the digest of one node; depth 16 is a leaf.
func (v *View) Node(depth, prefix int) uint64 { return v.node(depth, prefix) }

// Release gives the view's memory back to the store. The view must not be used any more.
func (v *View) Release() {
	m := v.owner
	if m == nil {
		panic("crdt: view released twice")
	}
	for i, b := range v.blocks {
		if b == nil {
			continue
		}
		if b.references--; b.references == 0 {
			m.spare = append(m.spare, b)
		}
		v.blocks[i] = nil
	}
	v.owner = nil
	m.views = append(m.views, v)
}
