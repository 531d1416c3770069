package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"colloid.net/ipc/attach"
	"colloid.net/ipc/attach/tree"
	"colloid.net/ipc/uds"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func (a *app) copyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cp SOURCE TARGET",
		Short: "Copy files into a replica or out of it",
		Long: `One of SOURCE and TARGET is WORKLOAD/INDEX:PATH, the other a path of this machine. Directories are copied with
what is in them. A target that is a directory gets the source inside, any other becomes its copy; files that
were there are replaced. PATH is absolute in a container, and below the scratch directory of a host process.
Files are read and written as the workload's user. A link named as SOURCE or as TARGET is followed, and a file
is written into a device or a pipe. Owners are not kept; in a directory, links that lead out of what is copied,
sockets and devices are left out, which is said. The host must allow it, as for "colloid exec".`,
		Example: "  colloid cp web/0:/etc/nginx nginx-of-web\n  colloid cp fix.conf web/0:/etc/nginx/conf.d",
		Args:    cobra.ExactArgs(2),
		RunE: func(command *cobra.Command, arguments []string) error {
			name, inside, fromInstance := instancePath(arguments[0])
			other, path, intoInstance := instancePath(arguments[1])
			switch {
			case fromInstance == intoInstance:
				return fail(ExitUsage, "one of both must be WORKLOAD/INDEX:PATH, the other a path of this machine (./NAME if "+
					"its name has a colon)")
			case fromInstance:
				return a.copyFrom(command.Context(), name, inside, arguments[1])
			}
			return a.copyInto(command.Context(), arguments[0], other, path)
		},
	}
}

// instancePath takes WORKLOAD/INDEX:PATH apart. A name that begins with / or . is a path of this machine.
func instancePath(text string) (replica, path string, ok bool) {
	if strings.HasPrefix(text, "/") || strings.HasPrefix(text, ".") {
		return "", "", false
	}
	replica, path, ok = strings.Cut(text, ":")
	return replica, path, ok && replica != "" && path != ""
}

// copyRun opens the stream of a copy and runs it to its end.
func (a *app) copyRun(ctx context.Context, name string, request *attach.Request, prepare func(*execution)) error {
	return a.with(func(s *session) error {
		streams, stream, target, err := a.openInside(s, uds.StreamCopy, name, request)
		if err != nil {
			return err
		}
		defer streams.close()
		s.close()
		x := &execution{app: a, stream: stream, frames: attach.NewWriter(stream), name: target.name(), request: request}
		said := &remarks{}
		x.errors = said
		prepare(x)
		err = x.run(ctx)
		var f *failure
		if errors.As(err, &f) && len(f.lines) == 0 { // the program has said why
			return fail(ExitError, "%s: %s", target.name(), said)
		}
		if err == nil && len(said.text) > 0 { // what was left out
			a.talk("colloid: %s: %s", target.name(), said)
		}
		return err
	})
}

// remarks keeps the beginning of what the program on the other side says, in one line.
type remarks struct{ text []byte }

const remarksMax = 1000

func (r *remarks) Write(p []byte) (int, error) {
	r.text = append(r.text, p[:min(len(p), remarksMax-len(r.text))]...)
	return len(p), nil
}

func (r *remarks) String() string {
	return printable(strings.ReplaceAll(strings.TrimSpace(string(r.text)), "\n", "; "))
}

// rootOf opens the directory that a path of this machine lies in.
func rootOf(path string) (*os.Root, string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, "", err
	}
	if path == "/" {
		root, err := os.OpenRoot("/")
		return root, ".", err
	}
	root, err := os.OpenRoot(filepath.Dir(path))
	return root, filepath.Base(path), err
}

// copyTarget is where a copy goes on this machine: a name below a directory, or what is open already.
type copyTarget struct {
	root *os.Root
	name string
	file *os.File // a pipe or a device
}

func (t *copyTarget) close() {
	if t.root != nil {
		t.root.Close()
	}
	if t.file != nil {
		t.file.Close()
	}
}

func (t *copyTarget) receive(from io.Reader) (tree.Result, error) {
	if t.file != nil {
		return tree.ReceiveInto(from, t.file)
	}
	return tree.Receive(from, t.root, t.name)
}

// openTarget opens what a path of this machine means, through links, which are this machine's own. The kernel
// follows them, with what it knows of links that strangers put into common directories.
func openTarget(local string) (*copyTarget, error) {
	info, err := os.Lstat(local)
	if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(local, "/") {
		return nil, errors.New("there is no such directory")
	}
	if errors.Is(err, fs.ErrNotExist) {
		root, name, err := rootOf(local)
		return &copyTarget{root: root, name: name}, err
	}
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		if info, err = os.Stat(local); errors.Is(err, fs.ErrNotExist) {
			return nil, errors.New("is a link to what does not exist: remove the link or make that file first")
		}
	}
	if err != nil {
		return nil, err
	}
	if number, own := ownDescriptor(local); own && !info.IsDir() {
		fd, err := unix.FcntlInt(uintptr(number), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		return &copyTarget{file: os.NewFile(uintptr(fd), local)}, nil
	}
	open := func(flags int) (*os.File, error) { return os.OpenFile(local, flags|unix.O_NOCTTY, 0) }
	switch mode := info.Mode(); {
	case mode.IsDir():
		root, err := os.OpenRoot(local)
		return &copyTarget{root: root, name: "."}, err
	case mode&fs.ModeNamedPipe != 0:
		file, err := tree.OpenPipe(open)
		return &copyTarget{file: file}, err
	case mode&fs.ModeDevice != 0:
		file, err := open(os.O_WRONLY)
		return &copyTarget{file: file}, err
	case !mode.IsRegular():
		return nil, errors.New("is neither a file, a directory, a pipe nor a device")
	}
	place, err := os.OpenFile(local, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer place.Close()
	resolved, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(place.Fd())))
	if err != nil {
		return nil, err
	}
	root, name, err := rootOf(resolved)
	return &copyTarget{root: root, name: name}, err
}

// ownDescriptor tells a path that means what is open already, such as standard output. What that is may be a
// file that others write to as well: it must not be replaced by another one of its name.
func ownDescriptor(local string) (number int, own bool) {
	for name, number := range map[string]int{"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2} {
		if local == name {
			return number, true
		}
	}
	for _, directory := range []string{"/dev/fd/", "/proc/self/fd/"} {
		if text, found := strings.CutPrefix(local, directory); found {
			number, err := strconv.ParseUint(text, 10, 31)
			return int(number), err == nil
		}
	}
	return 0, false
}

func (a *app) copyFrom(ctx context.Context, name, path, local string) error {
	to, err := openTarget(local)
	if err != nil {
		return fail(ExitUsage, "%s: %s", printable(local), printable(withoutPath(err)))
	}
	defer to.close()
	read, write := io.Pipe()
	received := make(chan error, 1)
	var result tree.Result
	go func() {
		var err error
		result, err = to.receive(read)
		if err != nil {
			read.CloseWithError(err)
		} else { // what pads the archive
			_, _ = io.Copy(io.Discard, read)
		}
		received <- err
	}()
	err = a.copyRun(ctx, name, &attach.Request{Path: path}, func(x *execution) { x.output = write })
	write.CloseWithError(cmpOr(err, io.EOF))
	receiveErr := <-received
	switch {
	case err != nil && !errors.Is(err, receiveErr):
		return err
	case receiveErr != nil:
		return fail(ExitError, "%s: %s", local, withoutName(receiveErr, filepath.Base(local)))
	case result.Skipped > 0:
		a.talk("colloid: left out, since they lead out of what was copied: %s", counted(int(result.Skipped), "link"))
	}
	return nil
}

func cmpOr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

func (a *app) copyInto(ctx context.Context, local, name, path string) error {
	base := filepath.Base(local)
	if absolute, err := filepath.Abs(local); err == nil {
		base = filepath.Base(absolute)
	}
	if base == "/" {
		base = "root"
	}
	if info, err := os.Stat(local); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return fail(ExitUsage, "%s is a socket, a pipe or a device: only files and directories are copied", printable(local))
	}
	resolved, err := filepath.EvalSymlinks(local) // what is named is copied, not the link to it
	if err != nil {
		return fail(ExitUsage, "%s: %s", printable(local), printable(withoutPath(err)))
	}
	root, source, err := rootOf(resolved)
	if err != nil {
		return fail(ExitUsage, "%s: %s", printable(local), printable(withoutPath(err)))
	}
	defer root.Close()
	if _, err := root.Stat(source); err != nil {
		return fail(ExitUsage, "%s: %s", printable(local), printable(withoutPath(err)))
	}
	var left tree.LeftOut
	failed := make(chan error, 1)
	err = a.copyRun(ctx, name, &attach.Request{Path: path, Into: true}, func(x *execution) {
		x.input = func(frames *attach.Writer) error {
			n, err := tree.Send(&frameInput{frames}, root, source, base)
			if left = n; err != nil && !errors.Is(err, errPassed) {
				failed <- fail(ExitError, "%s: %s", local, withoutName(err, source))
				x.abandon()
			}
			return err
		}
	})
	select {
	case sendErr := <-failed:
		return sendErr
	default:
	}
	if text := left.String(); err == nil && text != "" {
		a.talk("colloid: %s", text)
	}
	return err
}

// frameInput writes to the input of the program on the other side.
type frameInput struct{ frames *attach.Writer }

func (f *frameInput) Write(p []byte) (int, error) {
	if f.frames.Write(attach.KindInput, p) != nil {
		return 0, errPassed
	}
	return len(p), nil
}

// errPassed: nothing can be sent any more; why, is said where the answers are read.
var errPassed = errors.New("the stream has ended")

// withoutName is an error of package tree about what the operator named himself, which stands in front of it.
func withoutName(err error, name string) string {
	text := err.Error()
	for _, front := range []string{"write ", "create ", ""} {
		if reason, found := strings.CutPrefix(text, front+name+": "); found {
			return reason
		}
	}
	return text
}

// withoutPath is the reason in an error about a file, for messages that name the file as the operator did.
func withoutPath(err error) string {
	var of *fs.PathError
	if errors.As(err, &of) {
		err = of.Err
	}
	return err.Error()
}
