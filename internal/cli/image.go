package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"colloid.net/ipc/operator"
)

func (a *app) imageCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "image",
		Short: "Container images and modules of this machine",
		Long: `Images belong to one machine: these commands talk to runnerd here and to no other cell. A workload
needs none of them, since each cell pulls what it runs. They are for machines without a registry, for
pulling in advance, and for disk space.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(a.imagePull(), a.imageLoad(), a.imageList(), a.imageRemove(), a.imagePrune())
	return command
}

func (a *app) imagePull() *cobra.Command {
	var format outputFormat
	command := &cobra.Command{
		Use:   "pull REFERENCE",
		Short: "Pull an image from its registry",
		Long: `Pulls an image by tag, or by digest as in docker.io/library/nginx@sha256:..., and prints its digest. What is
interrupted goes on where it ended. Credentials come from /etc/colloid/registries.credentials.`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, arguments []string) error {
			request := operator.Request{Operation: operator.OperationPull, Reference: arguments[0]}
			return a.showImages(command.Context(), request, nil, format, func(i *operator.Image) {
				a.data("%s@%s", printable(cutDigest(arguments[0])), printable(i.Digest))
			})
		},
	}
	format.register(command)
	return command
}

func (a *app) imageLoad() *cobra.Command {
	var format outputFormat
	command := &cobra.Command{
		Use:   "load FILE",
		Short: "Load images, or a Wasm module, from a file",
		Long: `FILE is a tar of an OCI layout, a docker archive (docker save), or a WebAssembly module. Prints the digest
of each image, with which workloads name it: image NAME@sha256:... A module is named by any address and
its sha256.`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, arguments []string) error {
			file, err := os.OpenFile(arguments[0], os.O_RDONLY|unix.O_NONBLOCK, 0)
			if err != nil {
				return fail(ExitUsage, "%w", err)
			}
			defer file.Close()
			if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
				return fail(ExitUsage, "%s is no regular file: write the archive to one first", arguments[0])
			}
			request := operator.Request{Operation: operator.OperationLoad}
			err = a.showImages(command.Context(), request, file, format, func(i *operator.Image) {
				for _, name := range imageNames(i) {
					a.data("%s@%s", printable(name), printable(i.Digest))
				}
			})
			var f *failure
			if errors.As(err, &f) && f.exit != ExitUnreachable {
				return fail(f.exit, "%s: %w", printable(arguments[0]), err)
			}
			return err
		},
	}
	format.register(command)
	return command
}

func (a *app) imageList() *cobra.Command {
	var format outputFormat
	command := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the images that are here",
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			images := []operator.Image{}
			request := operator.Request{Operation: operator.OperationList}
			err := a.askRunnerd(command.Context(), request, nil, func(r operator.Reply) {
				if r.Image != nil {
					images = append(images, *r.Image)
				}
			})
			if err != nil {
				return err
			}
			if format == formatJSON {
				return a.printJSON(images)
			}
			t := newTable(a.Output, "IMAGE", "DIGEST", "SIZE", "CREATED", "ARCH", "INSTANCES")
			for _, row := range imageRows(images) {
				t.row(row...)
			}
			return t.flush()
		},
	}
	format.register(command)
	return command
}

func (a *app) imageRemove() *cobra.Command {
	return &cobra.Command{
		Use:   "rm IMAGE",
		Short: "Remove an image",
		Long: `IMAGE is a name or the beginning of a digest as "colloid image ls" shows them. A name of an image that has
others is taken away alone; the image goes with its last name, or at once by its digest. Layers that other
images need stay. An image that an instance uses stays too.`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, arguments []string) error {
			request := operator.Request{Operation: operator.OperationRemove, Reference: arguments[0]}
			return a.askRunnerd(command.Context(), request, nil, func(operator.Reply) {})
		},
	}
}

func (a *app) imagePrune() *cobra.Command {
	var format outputFormat
	command := &cobra.Command{
		Use:   "prune",
		Short: "Remove every image that no instance uses",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			request := operator.Request{Operation: operator.OperationPrune}
			return a.showImages(command.Context(), request, nil, format, func(i *operator.Image) {
				a.data("removed %s (%s)", printable(strings.Join(imageNames(i), ", ")), shortDigest(printable(i.Digest)))
			})
		},
	}
	format.register(command)
	return command
}

// showImages asks for something that ends in images, with a line of progress on a terminal meanwhile.
func (a *app) showImages(ctx context.Context, request operator.Request, file *os.File, format outputFormat,
	show func(*operator.Image),
) error {
	images := []operator.Image{}
	line := a.newProgressLine()
	err := a.askRunnerd(ctx, request, file, func(r operator.Reply) {
		if r.Progress != nil {
			line.show(printable(r.Progress.Text))
		}
		if r.Image != nil {
			images = append(images, *r.Image)
		}
	})
	line.clear()
	if err != nil && len(images) == 0 {
		return err
	}
	if format == formatJSON {
		return errors.Join(a.printJSON(images), err)
	}
	for i := range images { // those that there are, also where not all came
		show(&images[i])
	}
	return err
}

// askRunnerd asks the runnerd of this machine.
func (a *app) askRunnerd(ctx context.Context, request operator.Request, file *os.File, each func(operator.Reply)) error {
	path, err := a.operatorSocket()
	if err != nil {
		return err
	}
	err = operator.Do(ctx, path, request, file, each)
	var refused *operator.RefusedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused) && refused.Usage:
		return fail(ExitUsage, "%s", printable(refused.Text))
	case errors.As(err, &refused):
		return fail(ExitError, "%s", printable(refused.Text))
	case errors.Is(err, os.ErrPermission):
		return fail(ExitError, "%w", err)
	}
	return fail(ExitUnreachable, "%w", err)
}

// operatorSocket finds runnerd's socket, which lies beside that of meshd.
func (a *app) operatorSocket() (string, error) {
	places := a.socketPlaces()
	for _, place := range places {
		path := filepath.Join(filepath.Dir(place), operator.SocketName)
		if _, err := os.Lstat(path); err == nil || errors.Is(err, os.ErrPermission) {
			return path, nil // one that cannot be seen is refused with the group that is needed
		}
	}
	return "", fail(ExitUnreachable, "no runnerd runs here (no socket %s beside %q): start the cell with `colloid`",
		operator.SocketName, places)
}

// progressLine is one line on a terminal that is written over. Elsewhere it is nothing.
type progressLine struct {
	a     *app
	width int
}

func (a *app) newProgressLine() *progressLine {
	file, ok := a.Errors.(*os.File)
	if !ok {
		return nil
	}
	if _, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS); err != nil {
		return nil
	}
	return &progressLine{a: a}
}

func (l *progressLine) show(text string) {
	if l != nil {
		fmt.Fprintf(l.a.Errors, "\r%-*s", l.width, text)
		l.width = len(text)
	}
}

func (l *progressLine) clear() {
	if l != nil && l.width > 0 {
		fmt.Fprintf(l.a.Errors, "\r%*s\r", l.width, "")
	}
}

func cutDigest(reference string) string {
	name, _, _ := strings.Cut(reference, "@")
	return name
}

// imageRows has a line for each name of each image, by name; those without one come last.
func imageRows(images []operator.Image) (rows [][]string) {
	for i := range images {
		m := &images[i]
		for _, name := range imageNames(m) {
			rows = append(rows, []string{name, shortDigest(m.Digest), mebibytes(m.Size), day(m.Created), m.Architecture,
				fmt.Sprint(m.Instances)})
		}
	}
	slices.SortStableFunc(rows, func(a, b []string) int {
		if (a[0] == noName) != (b[0] == noName) {
			return strings.Compare(b[0], a[0]) // a bracket comes before every letter
		}
		return strings.Compare(a[0], b[0])
	})
	return rows
}

const noName = "(no name)"

// imageNames are the names of an image for people.
func imageNames(i *operator.Image) []string {
	if len(i.References) == 0 {
		return []string{noName}
	}
	return i.References
}

// shortDigest is enough of a digest to name an image by.
func shortDigest(digest string) string {
	return digest[:min(len(digest), len("sha256:")+12)]
}

func mebibytes(bytes int64) string { return fmt.Sprintf("%.1fMiB", float64(bytes)/(1<<20)) }

func day(t time.Time) string {
	if t.Unix() <= 0 {
		return "-"
	}
	return t.UTC().Format(time.DateOnly)
}
