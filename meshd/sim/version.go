package sim

import (
	"fmt"
	"time"

	"colloid.net/meshd/cell"
	"colloid.net/meshd/wire"
)

// The next version of meshd, as far as this one has to get along with it (F26, D12): it speaks one more
// version of the protocol, uses it with everybody who does too, lists a feature that this version has never
// heard of, and says something in its contact that this version does not understand and may overlook.

// NextVersions is what the next version of meshd speaks.
var NextVersions = wire.Versions{Min: wire.Version, Max: wire.Version + 1}

const nextFeature = 1 << 31

// nextContact is a field of tag 100 that is to be skipped.
var nextContact = []byte{100, 3, 'n', 'e', 'w'}

// install puts into a configuration what depends on the installed program.
func (n *Node) install(config *cell.Config) {
	config.Versions = n.versions
	if n.versions.Max > wire.Spoken.Max {
		config.Software = "sim-next"
		config.Features = nextFeature
		config.ContactExtension = nextContact
	}
}

// restartTime is how long meshd is away when a package is replaced.
const restartTime = 500 * time.Millisecond

// change replaces the installed meshd by one that speaks other versions. What runs goes on.
func (w *World) change(n *Node, versions wire.Versions) {
	if n.reserved || n.versions == versions || w.calm {
		return
	}
	n.versions = versions
	w.Tracef("n%d gets the version that speaks %d to %d", n.Index, versions.Min, versions.Max)
	if n.cell == nil {
		return
	}
	n.reserved = true
	n.Kill()
	w.After(restartTime, func() {
		n.reserved = false
		n.Boot()
	})
}

// versionsWithin is how long the contact of a cell may be behind the cell: it boots, has a session, and its
// contact spreads.
const versionsWithin = 90 * time.Second

// checkVersions is F26: whoever could know is written to in a version that it speaks, the greatest.
func checkVersions() *Checker {
	return &Checker{Name: "F26", Datagram: func(w *World, from, to *Node, datagram []byte) error {
		version := datagram[0]
		best, ok := from.versions.Common(to.versions)
		if from.versions != to.versions {
			w.examined("F26")
		}
		if ok && version == best || wire.Type(datagram[1]).Joining() ||
			to.disk.identities > 1 || // perhaps to an earlier cell of this machine
			from.QuietFor() < versionsWithin || to.QuietFor() < versionsWithin ||
			from.cell.ClusterID() != to.cell.ClusterID() {
			return nil
		}
		if !ok {
			return fmt.Errorf("n%d writes to n%d, which speaks nothing that it speaks", from.Index, to.Index)
		}
		return fmt.Errorf("n%d writes to n%d in version %d and not in %d", from.Index, to.Index, version, best)
	}}
}
