package runnerd

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"colloid.net/ipc/message"
	"colloid.net/runnerd/podnet"
	"colloid.net/workload"
)

// openNetwork opens the network of containers, where they can be run at all.
func (s *Supervisor) openNetwork() error {
	if s.options.Network != nil || s.containerImages() == nil {
		return nil
	}
	network, err := podnet.Open(podnet.Options{
		Directory: s.options.Directory, Log: s.options.Log, Changed: func() { go s.post(s.networkChanged) },
	})
	if err != nil {
		return fmt.Errorf("runnerd: %w", err)
	}
	s.options.Network = network
	return nil
}

// networkChanged tells meshd that there are other sockets for it.
func (s *Supervisor) networkChanged() {
	if s.session != nil {
		s.session.network = true
	}
}

// retainNetworks removes the networks of instances that are no more, before anything is adopted or started.
func (s *Supervisor) retainNetworks() {
	if s.options.Network == nil {
		return
	}
	var names []string
	entries, _ := os.ReadDir(filepath.Join(s.options.Directory, instancesDirName))
	for _, entry := range entries {
		if _, ok := parseInstanceID(entry.Name()); ok {
			names = append(names, entry.Name())
		}
	}
	if s.spares != nil {
		names = slices.AppendSeq(names, maps.Keys(s.spares.seats()))
	}
	if err := s.options.Network.Retain(names); err != nil {
		s.options.Log.Printf("cannot put the network of containers right: %v", err)
		s.alarms = append(s.alarms, "the network of containers could not be put right: "+shorten(err.Error()))
	}
}

// checkNetwork looks in the background whether the rules of the network are still there.
func (s *Supervisor) checkNetwork() {
	if s.options.Network == nil || s.checking {
		return
	}
	s.checking = true
	go func() {
		defer s.post(func() { s.checking = false })
		switch repaired, err := s.options.Network.Check(); {
		case err != nil:
			s.options.Log.Printf("cannot look after the network of containers: %v", err)
		case repaired:
			s.options.Log.Print("somebody has removed rules of the network of containers from the firewall: they are in force again")
		}
	}()
}

// networkMessage is what meshd has to know of the network.
func (s *Supervisor) networkMessage() *message.Network {
	m := &message.Network{}
	if s.options.Network == nil {
		return m
	}
	ranges, generation := s.options.Network.Resolver()
	for _, r := range ranges {
		m.Ranges = append(m.Ranges, &message.Range{Address: r.Addr().AsSlice(), Bits: uint32(r.Bits())})
	}
	m.Generation = generation
	return m
}

// attachResolver passes a socket for answering names.
func (s *Supervisor) attachResolver(from *session, channel uint64, m *message.Resolver) {
	switch network := s.options.Network; {
	case from.attaching >= attachesMax:
		s.attached(from, channel, fmt.Errorf("%d descriptors are being made already: try again", attachesMax))
	case network == nil:
		s.attached(from, channel, errors.New("there is no network of containers"))
	default:
		s.pass(from, channel, func() (*os.File, error) { return network.ResolverSocket(m.Ipv6, m.Stream) })
	}
}

// allowPorts lets containers reach what processes and modules of this host publish: they live in the
// host's own network, of which containers see nothing else.
func (s *Supervisor) allowPorts() {
	if s.options.Network == nil {
		return
	}
	var ports []workload.Port
	for _, i := range s.instances {
		if i.phase != phaseRunning || i.ownAddress.IsValid() || i.spec.Runtime == workload.RuntimeOCI {
			continue
		}
		for _, port := range i.spec.Ports {
			ports = append(ports, workload.Port{Host: port.Host, Protocol: port.Protocol})
		}
	}
	slices.SortFunc(ports, func(a, b workload.Port) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Protocol, b.Protocol))
	})
	ports = slices.Compact(ports)
	if slices.Equal(ports, s.allowed) || s.allowing {
		return
	}
	s.allowed, s.allowing = ports, true
	go func() {
		defer s.post(func() { s.allowing = false }) // and what changed meanwhile is looked at again
		if err := s.options.Network.Allow(ports); err != nil {
			s.options.Log.Printf("cannot let containers reach the ports of processes: %v", err)
		}
	}()
}
