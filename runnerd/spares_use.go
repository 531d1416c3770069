package runnerd

import (
	"path/filepath"

	"colloid.net/runnerd/policy"
	"colloid.net/workload"
)

// openSpares begins to keep a spare where containers can be run, and removes those of an earlier runnerd.
func (s *Supervisor) openSpares() {
	b, ok := s.backends[workload.RuntimeOCI].(*ociBackend)
	if !ok || b.images == nil || b.ids == nil {
		return
	}
	s.spares = newSpares(b, s.options.Groups, s.options.Log, filepath.Join(s.options.Directory, instancesDirName))
	if err := s.spares.sweep(); err != nil {
		s.options.Log.Printf("cannot remove the sandboxes of an earlier runnerd: %v", err)
	}
}

// keepSpare says whether a spare is of use: while a container of runnerd's own runs.
func (s *Supervisor) keepSpare() {
	if s.spares == nil {
		return
	}
	containers := s.policy.Containers
	for _, i := range s.instances {
		if i.phase == phaseRunning && i.spec.Runtime == workload.RuntimeOCI && !containers.Denied && containers.Runtime == "" {
			s.spares.want(true, containers.Network, i.cell)
			return
		}
	}
	s.spares.want(false, policy.Network{}, 0)
}

// useSpare gives an instance that is about to start the spare, if it is one that can have it.
func (s *Supervisor) useSpare(i *instance, j *launchJob) {
	if s.spares == nil || i.spec.Runtime != workload.RuntimeOCI || j.permit.Containers.Runtime != "" ||
		len(i.spec.Volumes) > 0 || s.spares.backend.ids.Has(i.id.String()) {
		return
	}
	taken := s.spares.take(i.id, i.directory, j.permit.Containers.Network, i.cell)
	if taken == nil {
		return
	}
	j.spare = taken
	if taken.group != "" {
		i.group, j.group = taken.group, taken.group
		if err := i.save(); err != nil {
			s.options.Log.Printf("cannot write down the state of %s: %v", i.id, err)
		}
	}
}
