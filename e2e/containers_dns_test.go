package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"

	"colloid.net/e2e/cluster"
)

// probe is the workload from which names are asked: one copy on each cell.
const probe = "spread.probe"

// answers are what the containers of one cell hear for a name.
type answers struct{ v4, v6 []netip.Addr }

// ask has busybox in the copy of probe with an index ask for a name, as any program of an image does.
func (c *containers) ask(ctx context.Context, from *cluster.Cell, index int, name string) (cell string, heard answers, err error) {
	text, err := from.Command(ctx, "exec", fmt.Sprintf("probe/%d", index), "--", "sh", "-c", "echo $COLLOID_CELL; for type in a aaaa; do "+
		"busybox nslookup -type=$type "+name+" 2>&1; done; true")
	if err != nil {
		return "", heard, err
	}
	cell, text, _ = strings.Cut(text, "\n")
	named := false
	for line := range strings.Lines(text) {
		word, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch address, err := netip.ParseAddr(strings.TrimSpace(value)); {
		case word == "Server":
			named = false
		case word == "Name":
			named = true
		case word != "Address" || !named || err != nil:
		case address.Is4():
			heard.v4 = append(heard.v4, address)
		default:
			heard.v6 = append(heard.v6, address)
		}
	}
	return cell, heard, nil
}

// expects waits until the copies of probe on all cells that run hear of one copy of web: those of its cell its own
// addresses, in both families, and the others the address of its cell. It gives the cell of web.
func (c *containers) expects(except *cluster.Cell) (holder *cluster.Cell) {
	c.t.Helper()
	c.waitLong("the name of web", func(ctx context.Context) error {
		all, err := c.copiesOf(ctx, web)
		if err != nil || len(all) != 1 || all[0].instance.State != "ready" || all[0].cell == except {
			return fmt.Errorf("%s, %v", describeCopies(all), err)
		}
		holder = all[0].cell
		status, err := holder.Status(ctx)
		if err != nil {
			return err
		}
		cells := map[string]bool{}
		for index := range c.Cells {
			cell, heard, err := c.ask(ctx, holder, index, "web.colloid")
			if err != nil && except != nil {
				continue // it was on the cell that died
			}
			if err != nil {
				return err
			}
			cells[cell] = true
			near := cell == status.Cell.ID
			switch {
			case near && (len(heard.v4) != 1 || len(heard.v6) != 1 || heard.v4[0] == holder.Address || heard.v6[0].IsLinkLocalUnicast()),
				!near && (len(heard.v4) != 1 || heard.v4[0] != holder.Address || len(heard.v6) != 0):
				return fmt.Errorf("on cell %s, web being on %s at %v: %v", cell, status.Cell.ID, holder.Address, heard)
			}
		}
		if len(cells) != len(c.Running()) {
			return fmt.Errorf("probes on %v", cells)
		}
		return nil
	})
	return holder
}

// Programs in containers find workloads by name, in both families and at the address that reaches them from where they
// are; after the cell of a workload has died they find it where it went. Other names are the business of the host's
// resolver (F158).
func TestF158_ContainersResolveNames(t *testing.T) {
	upstream := resolverOfHost(t)
	line := operatorKey(t, "anna")
	c := startContainers(t, func(string, int) string { return "exec *\n" + line })
	c.published = true
	c.push("web:1", "one", nil)
	c.push("probe:1", "probe", func(config *v1.Config) { config.Cmd = []string{"sleep", "100000"} })
	for _, cell := range c.Cells {
		c.answerNames(cell, upstream)
	}
	c.run(c.Cells[0], 0, "apply", "-f", c.webFile(c.in("web:1"), 1))
	c.run(c.Cells[0], 0, "apply", "-f", c.file(fmt.Sprintf("spread probe {\n\timage %s\n\treplicas 3\n}\n", c.in("probe:1"))))
	first := c.expects(nil)

	_, heard, err := c.ask(t.Context(), first, 0, "other.example")
	if err != nil || fmt.Sprint(heard.v4) != "[192.0.2.7]" || fmt.Sprint(heard.v6) != "[2001:db8::7]" {
		t.Errorf("another name: %v, %v", heard, err)
	}
	if _, heard, err = c.ask(t.Context(), first, 0, "nothing.colloid"); err != nil || len(heard.v4)+len(heard.v6) != 0 {
		t.Errorf("a workload that does not exist: %v, %v", heard, err)
	}
	if err := first.Kill(); err != nil {
		t.Fatal(err)
	}
	if next := c.expects(first); next == first {
		t.Error("web is where it was")
	}
}

// resolverOfHost is the first resolver that meshd finds on this machine.
func resolverOfHost(t *testing.T) netip.Addr {
	t.Helper()
	text, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		t.Skipf("needs a resolver to play: %v", err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == "nameserver" {
			if address, err := netip.ParseAddr(fields[1]); err == nil {
				return address
			}
		}
	}
	t.Skip("needs a resolver to play: /etc/resolv.conf names none")
	return netip.Addr{}
}

// answerNames is the host's resolver of a cell: in the cell's network namespace the address of this machine's resolver
// belongs to lo, and the test answers there.
func (c *containers) answerNames(cell *cluster.Cell, address netip.Addr) {
	c.t.Helper()
	var conn net.PacketConn
	err := cell.Do(func() error {
		handle, err := netlink.NewHandle() // of the namespace of this thread
		if err != nil {
			return err
		}
		defer handle.Close()
		lo, err := handle.LinkByName("lo")
		if err != nil {
			return err
		}
		own := &netlink.Addr{IPNet: &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(address.BitLen(), address.BitLen())}}
		if err := handle.AddrAdd(lo, own); err != nil && !address.IsLoopback() {
			return err
		}
		conn, err = net.ListenPacket("udp", netip.AddrPortFrom(address, 53).String())
		return err
	})
	if err != nil {
		c.t.Fatalf("play the resolver of %s: %v", cell.Name, err)
	}
	c.t.Cleanup(func() { conn.Close() })
	go func() {
		query := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(query)
			if err != nil {
				return
			}
			if answer := answerOther(query[:n]); answer != nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
}

// answerOther knows two addresses of other.example and no other name.
func answerOther(query []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	m.Response, m.Additionals = true, nil
	q := m.Questions[0]
	head := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 5}
	switch {
	case q.Name.String() != "other.example.":
		m.RCode = dnsmessage.RCodeNameError
	case q.Type == dnsmessage.TypeA:
		address := netip.MustParseAddr("192.0.2.7").As4()
		m.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AResource{A: address}}}
	case q.Type == dnsmessage.TypeAAAA:
		address := netip.MustParseAddr("2001:db8::7").As16()
		m.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AAAAResource{AAAA: address}}}
	}
	answer, err := m.Pack()
	if err != nil {
		return nil
	}
	return answer
}
