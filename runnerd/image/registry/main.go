package registry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/packet"
	"colloid.net/runnerd/image/manifest"
)

// Argument is what `runnerd fetch` is called with. Descriptor 3 is the socket to runnerd.
const Argument = "fetch"

const socketDescriptor = 3

// Main is the process `runnerd fetch`.
func Main() int {
	signal.Ignore(syscall.SIGINT, syscall.SIGPIPE)
	if err := confine(); err != nil {
		fmt.Fprintln(os.Stderr, "runnerd fetch:", err)
		return 1
	}
	conn, err := packet.Open(os.NewFile(socketDescriptor, "runnerd"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "runnerd fetch: this is started by runnerd:", err)
		return 2
	}
	var job Job
	if file, err := conn.Receive(&job); err != nil || file != nil || job.Version != Version {
		fmt.Fprintln(os.Stderr, "runnerd fetch: no job of this version:", err)
		return 2
	}
	r := &remote{conn: conn, grants: make(chan grant)}
	go r.receive()
	outcome, err := Run(context.Background(), &job, r)
	last := Message{Kind: MessageDone, Digest: outcome.Digest, Architectures: outcome.Architectures,
		Sources: outcome.Sources}
	if err != nil {
		last = Message{Kind: MessageFailed, Error: shorten(err.Error()), Refused: errors.As(err, new(refusal))}
	}
	if conn.Send(last, nil) != nil {
		return 1
	}
	return 0
}

// confine gives up what the process could still gain or do harm with: no program that it would start has
// more rights, nobody with the same user id can look into its memory, and no file grows beyond a layer.
func confine() error {
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("set no_new_privs: %w", errno)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("clear dumpable: %w", err)
	}
	limits := map[int]uint64{unix.RLIMIT_FSIZE: manifest.LayerSizeMax, unix.RLIMIT_CORE: 0, unix.RLIMIT_NOFILE: 256}
	for resource, limit := range limits {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("set resource limit %d: %w", resource, err)
		}
	}
	return nil
}

const errorMax = 2048

func shorten(text string) string {
	if len(text) > errorMax {
		return text[:errorMax] + "..."
	}
	return text
}

// remote is runnerd behind the socket.
type remote struct {
	conn   *packet.Conn
	grants chan grant
}

type grant struct {
	Grant
	file *os.File
}

// receive hands on what runnerd answers. When runnerd hangs up, this process has no reason to be.
func (r *remote) receive() {
	for {
		var g grant
		file, err := r.conn.Receive(&g.Grant)
		if err != nil {
			os.Exit(1)
		}
		g.file = file
		r.grants <- g
	}
}

// Blob asks for the file of a blob.
func (r *remote) Blob(digest manifest.Digest, size int64) (*os.File, int64, error) {
	if err := r.conn.Send(Message{Kind: MessageBlob, Digest: digest, Size: size}, nil); err != nil {
		return nil, 0, err
	}
	g := <-r.grants
	if g.file == nil {
		return nil, 0, errors.New("runnerd gives no file")
	}
	return g.file, g.Offset, nil
}

// Layers asks which layers are needed.
func (r *remote) Layers(layers []Layer) ([]bool, error) {
	if err := r.conn.Send(Message{Kind: MessageLayers, Layers: layers}, nil); err != nil {
		return nil, err
	}
	g := <-r.grants
	if g.file != nil {
		g.file.Close()
	}
	return g.Missing, nil
}

// Peer asks for a blob of another cell.
func (r *remote) Peer(digest manifest.Digest, size, offset int64) (*os.File, Grant, error) {
	if err := r.conn.Send(Message{Kind: MessagePeer, Digest: digest, Size: size, Offset: offset}, nil); err != nil {
		return nil, Grant{}, err
	}
	g := <-r.grants
	return g.file, g.Grant, nil
}

// Lied tells what was wrong with it; that it cannot be sent changes nothing.
func (r *remote) Lied(why string) {
	_ = r.conn.Send(Message{Kind: MessageLied, Error: shorten(why)}, nil)
}

// Progress tells how far the job is; a progress that cannot be sent is not missed.
func (r *remote) Progress(m Message) { _ = r.conn.Send(m, nil) }
