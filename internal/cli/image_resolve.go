package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"colloid.net/ipc/operator"
	"colloid.net/workload"
)

// resolveTimeout bounds how long all tags of a command may take.
const resolveTimeout = 2 * time.Minute

// architectures that a workload may ask for (workload: arch).
var architectures = []string{"amd64", "arm64"}

// resolveImages pins every image that has a tag and no digest to what the tag means now, so that all cells
// run the same, whenever they start it (F84). runnerd of this machine asks the registry. An image that
// exists for one architecture only is placed on cells of that (F77).
func (a *app) resolveImages(all []desired) error {
	ctx, cancel := context.WithTimeout(context.Background(), resolveTimeout)
	defer cancel()
	known := map[string]*operator.Resolved{}
	var complaints []string
	exit := ExitUsage // unless another try may help
	for i := range all {
		d := &all[i]
		if d.spec.Runtime != workload.RuntimeOCI || d.spec.ImageDigest != [32]byte{} {
			continue
		}
		resolved, err := known[d.spec.Image], error(nil)
		if resolved == nil {
			resolved, err = a.resolveImage(ctx, d.spec.Image)
		}
		if err == nil {
			known[d.spec.Image] = resolved
			err = d.pin(resolved)
		}
		if err != nil {
			var f *failure
			if !errors.As(err, &f) || f.exit != ExitUsage {
				exit = ExitError
			}
			complaints = append(complaints, fmt.Sprintf("%s: %s: %v", d.place, d.key, err))
		}
	}
	if len(complaints) > 0 {
		return &failure{exit: exit, lines: append(complaints, "nothing was written")}
	}
	return nil
}

// resolveImage asks runnerd what a reference means. The error names the way out that always works.
func (a *app) resolveImage(ctx context.Context, reference string) (*operator.Resolved, error) {
	var resolved *operator.Resolved
	request := operator.Request{Operation: operator.OperationResolve, Reference: reference}
	err := a.askRunnerd(ctx, request, nil, func(r operator.Reply) {
		if r.Resolved != nil {
			resolved = r.Resolved
		}
	})
	if err == nil && resolved == nil {
		err = fmt.Errorf("runnerd gives no answer")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find out what image %s is: %w; or write its digest: image %s@sha256:...",
			reference, err, reference)
	}
	return resolved, nil
}

// pin writes the answer into the specification.
func (d *desired) pin(r *operator.Resolved) error {
	digits, _ := strings.CutPrefix(r.Digest, "sha256:")
	raw, err := hex.DecodeString(digits)
	if err != nil || len(raw) != len(d.spec.ImageDigest) {
		return fmt.Errorf("runnerd says that %s has the digest %.80q: are colloid and runnerd of one version?",
			d.spec.Image, printable(r.Digest))
	}
	copy(d.spec.ImageDigest[:], raw)
	d.note = fmt.Sprintf("%s: %s is sha256:%x", d.key, d.spec.Image, raw)
	if r.Loaded {
		d.note += ", loaded on this machine: other cells need it too"
	}
	if err := d.chooseArchitecture(r.Architectures); err != nil {
		return err
	}
	d.encoded, err = workload.Encode(d.spec)
	return err
}

// chooseArchitecture compares what there is with what the workload asks for.
func (d *desired) chooseArchitecture(offered []string) error {
	if len(offered) == 0 {
		return nil
	}
	var usable []string
	for _, architecture := range architectures {
		if slices.Contains(offered, architecture) {
			usable = append(usable, architecture)
		}
	}
	switch wanted := d.spec.Architecture; {
	case wanted != "" && !slices.Contains(offered, wanted):
		return fmt.Errorf("image %s exists for %q, the workload asks for arch %s", d.spec.Image, offered, wanted)
	case len(usable) == 0:
		return fmt.Errorf("image %s exists for %q, expected %s", d.spec.Image, offered, strings.Join(architectures, " or "))
	case wanted == "" && len(usable) == 1:
		d.spec.Architecture = usable[0]
		d.note += fmt.Sprintf(", for %s only", usable[0])
	}
	return nil
}
