package runnerd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"colloid.net/ipc/operator"
	"colloid.net/runnerd/image"
	"colloid.net/runnerd/image/manifest"
	"colloid.net/workload"
)

func (o *operators) pull(ctx context.Context, reference string, progress func(image.Progress),
	show func([]image.Image, error) error,
) error {
	if err := o.allowed(reference); err != nil {
		return err
	}
	if err := o.useful(); err != nil {
		return err
	}
	var digest image.Digest
	if _, text, pinned := strings.Cut(reference, "@"); pinned {
		var err error
		if digest, err = manifest.ParseDigest(text); err != nil {
			return usageError{fmt.Errorf("%.200q is no reference of an image: %w", reference, err)}
		}
	}
	pulled, err := o.supervisor.images.Pull(ctx, reference, digest, progress)
	if err != nil {
		return err
	}
	return show([]image.Image{pulled}, nil)
}

// list gives the images that are here. What uses one is not its mounted root alone: an instance that waits for its
// next start has none, and needs the image then.
func (o *operators) list(ctx context.Context) ([]image.Image, error) {
	list, err := o.supervisor.images.List(ctx)
	o.supervisor.do(func() {
		for i := range list {
			list[i].Users = max(list[i].Users, len(o.supervisor.instancesOf(list[i].Digest)))
		}
	})
	slices.SortFunc(list, func(a, b image.Image) int { // by name, those without one last
		byName := cmp.Compare(len(b.References), len(a.References))
		if len(a.References) > 0 && len(b.References) > 0 {
			byName = strings.Compare(a.References[0], b.References[0])
		}
		return cmp.Or(byName, bytes.Compare(a.Digest[:], b.Digest[:]))
	})
	return list, err
}

// instancesOf lists the workloads of the instances of an image or module that run or shall run, one each.
func (s *Supervisor) instancesOf(digest image.Digest) (keys []string) {
	for _, i := range s.instances {
		if i.phase != phaseDenied && i.spec != nil && i.spec.Runtime != workload.RuntimeProcess && i.spec.ImageDigest == digest {
			keys = append(keys, i.key)
		}
	}
	slices.Sort(keys)
	return keys
}

// inUse says why an image stays.
func (o *operators) inUse(i *image.Image) error {
	var keys []string
	o.supervisor.do(func() { keys = slices.Compact(o.supervisor.instancesOf(i.Digest)) })
	who := strings.Join(keys[:min(len(keys), 3)], ", ")
	if len(keys) > 3 {
		who += fmt.Sprintf(" and %d more", len(keys)-3)
	}
	if who == "" {
		return fmt.Errorf("image %s is in use here, by what is just ending: try again", i.Digest)
	}
	return fmt.Errorf("image %s is in use here, by %s: delete the workload, or have it run elsewhere", i.Digest, who)
}

// prune removes the images that no instance uses and that do not stand by for one: those would be brought again.
func (o *operators) prune(ctx context.Context) (removed []image.Image, err error) {
	list, err := o.list(ctx)
	for _, i := range list {
		standby := false
		o.supervisor.do(func() { standby = o.supervisor.standsBy(i.Digest) })
		if i.Users > 0 || standby || err != nil {
			continue
		}
		if err = o.supervisor.images.Remove(ctx, i.Digest); err == nil {
			removed = append(removed, i)
		}
	}
	return removed, err
}

// remove finds an image by digest, the beginning of one, or name. Of several names one goes, and nothing else with it.
func (o *operators) remove(ctx context.Context, what string) error {
	if what == "" {
		return usageError{errors.New("name an image, or the beginning of its digest: see `colloid image ls`")}
	}
	list, err := o.list(ctx)
	if err != nil {
		return err
	}
	digits := strings.TrimPrefix(what, "sha256:")
	var found []image.Image
	var names []string // of the first one found
	for _, i := range list {
		called := namesLike(i.References, what)
		if len(called) > 0 || len(digits) >= digitsMin && strings.HasPrefix(i.Digest.Hex(), digits) {
			if len(found) == 0 {
				names = called
			}
			found = append(found, i)
		}
	}
	switch len(found) {
	case 0:
		if digest, err := manifest.ParseHex(digits); err == nil && canSwitchUser() { // one with a damaged record is in no list
			if err := o.supervisor.images.Remove(ctx, digest); !errors.Is(err, image.ErrAbsent) {
				return err
			}
		}
		return fmt.Errorf("there is no image %.200q here: see `colloid image ls`", what)
	case 1:
		if len(names) > 0 && len(names) < len(found[0].References) {
			return o.supervisor.images.Remove(ctx, found[0].Digest, names...)
		}
		if found[0].Users > 0 {
			return o.inUse(&found[0])
		}
		err := o.supervisor.images.Remove(ctx, found[0].Digest)
		if err == nil {
			o.supervisor.do(func() { o.supervisor.preparedRemoved(found[0].Digest) })
		}
		return err
	}
	return fmt.Errorf("%.200q means %d images here: name one by its digest", what, len(found))
}

// namesLike gives the names that mean the same as one that somebody wrote.
func namesLike(references []string, what string) (names []string) {
	full, _, fullErr := image.Normalize(what)
	for _, reference := range references {
		normalized, _, err := image.Normalize(reference)
		if reference == what || fullErr == nil && err == nil && normalized == full {
			names = append(names, reference)
		}
	}
	return names
}

// digitsMin is the shortest beginning of a digest that names an image.
const digitsMin = 6

func describeImage(i *image.Image) *operator.Image {
	return &operator.Image{Digest: i.Digest.String(), References: i.References, Size: i.Size, Created: i.Created,
		Architecture: i.Architecture, Loaded: i.Loaded, Instances: i.Users}
}

// throttle passes on at most a few reports a second.
func throttle(report func(image.Progress)) func(image.Progress) {
	var last time.Time
	return func(p image.Progress) {
		if now := time.Now(); now.Sub(last) >= progressEvery {
			last = now
			report(p)
		}
	}
}

const progressEvery = 250 * time.Millisecond

// openImages gives the client of this runnerd. What it may reach follows the policy as it changes.
func (s *Supervisor) openImages() error {
	client, err := image.Open(image.Options{
		Directory: filepath.Join(s.options.Directory, "images"), Credentials: s.options.Credentials,
		Owners: s.options.Owners, Log: s.options.Log, Hosts: s.registryHosts, Command: s.options.ImagesCommand,
		Peers: peers{s}, Share: s.sharing,
	})
	s.images = client
	return err
}

// certificatesMax bounds a file of certificates: all of them have to fit the message to a fetcher.
const certificatesMax = 16 << 10

// registryHosts gives what the policy says of single registries. It runs outside the loop.
func (s *Supervisor) registryHosts() []image.Host {
	var hosts []image.Host
	var files []string
	s.do(func() {
		for _, r := range s.policy.Registries {
			hosts = append(hosts, image.Host{Name: r.Host, HTTP: r.HTTP, Private: r.Private})
			files = append(files, r.CA)
		}
	})
	for i, path := range files {
		if path == "" {
			continue
		}
		text, err := s.readTrusted(path, certificatesMax)
		if err != nil {
			s.options.Log.Printf("registry %s: %v", hosts[i].Name, err)
			text = []byte("none") // not the system's: the policy says which
		}
		hosts[i].CA = text
	}
	return hosts
}

func (s *Supervisor) readTrusted(path string, limit int) ([]byte, error) {
	file, _, err := s.options.Owners.OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text := make([]byte, limit+1)
	n, err := file.ReadAt(text, 0)
	if n > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	if n == 0 {
		return nil, err
	}
	return text[:n], nil
}
