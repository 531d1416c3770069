package podnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// sysctl is a switch of the kernel, by its path below /proc/sys/net; those belong to the network
// namespace of the thread.
type sysctl struct{ path, value string }

// forwarding is what the host needs to carry the packets of containers. It stays when the network goes:
// whoever switched it on as well would be cut off.
func forwarding() []sysctl {
	list := []sysctl{{"ipv4/ip_forward", "1"}}
	// An interface that forwards takes no router advertisements unless told so: a host that has its own
	// address from them would lose it.
	paths, _ := filepath.Glob("/proc/sys/net/ipv6/conf/*/accept_ra")
	for _, path := range paths {
		if text, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(text)) == "1" {
			list = append(list, sysctl{strings.TrimPrefix(path, "/proc/sys/net/"), "2"})
		}
	}
	return append(list, sysctl{"ipv6/conf/all/forwarding", "1"})
}

// ofBridge is set on the bridge and goes with it.
func ofBridge(bridge string) []sysctl {
	return []sysctl{
		// Connections of the host to its own 127.0.0.1 and a published port are sent on to the container.
		// Packets from containers to such addresses are dropped (rules.go).
		{"ipv4/conf/" + bridge + "/route_localnet", "1"},
		{"ipv4/conf/" + bridge + "/send_redirects", "0"},
		{"ipv4/conf/" + bridge + "/accept_redirects", "0"},
		// Its addresses are its own: while the kernel looked for duplicates it would find no neighbour.
		{"ipv6/conf/" + bridge + "/accept_dad", "0"},
		{"ipv6/conf/" + bridge + "/accept_ra", "0"},
		{"ipv6/conf/" + bridge + "/accept_redirects", "0"},
	}
}

// ofContainer is set in the namespace of a container before it has an interface.
func ofContainer() []sysctl {
	return []sysctl{
		// The namespace belongs to the host, so that nothing in a container can change it. These two give
		// root inside what it has in a namespace of its own: low ports, and ping without raw sockets.
		{"ipv4/ip_unprivileged_port_start", "0"},
		{"ipv4/ping_group_range", "0 2147483647"},
		// Addresses are given and unique: no waiting for duplicates, no addresses from advertisements. The
		// link-local one follows from the hardware address, so that the rules know it.
		{"ipv6/conf/default/accept_dad", "0"},
		{"ipv6/conf/default/accept_ra", "0"},
		{"ipv6/conf/default/addr_gen_mode", "0"},
		{"ipv4/conf/all/accept_redirects", "0"},
		{"ipv4/conf/default/accept_redirects", "0"},
		{"ipv6/conf/default/accept_redirects", "0"},
	}
}

// set writes switches that have another value. Without IPv6 in the kernel its switches are no loss.
func set(list []sysctl) error {
	for _, s := range list {
		path := filepath.Join("/proc/sys/net", s.path)
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(s.path, "ipv6/") {
			continue
		}
		if err == nil && strings.Join(strings.Fields(string(text)), " ") == s.value {
			continue
		}
		if err := os.WriteFile(path, []byte(s.value), 0); err != nil {
			return fmt.Errorf("set net/%s to %s: %w", s.path, s.value, err)
		}
	}
	return nil
}

// hasIPv6 reports whether the kernel knows IPv6 in this network namespace.
func hasIPv6() bool {
	text, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	return err == nil && strings.TrimSpace(string(text)) == "0"
}
