package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"sync"
	"syscall"
	"time"

	"colloid.net/ipc/packet"
	"colloid.net/runnerd/image/registry"
)

// The user of fetchers: the first number of a few that is no account and no group of this host. Not
// nobody, whose processes belong to many services.
const (
	fetcherFirst = 61216
	fetcherCount = 16
)

var fetcherUser = sync.OnceValues(func() (uint32, error) {
	for number := fetcherFirst; number < fetcherFirst+fetcherCount; number++ {
		text := strconv.Itoa(number)
		_, errUser := user.LookupId(text)
		_, errGroup := user.LookupGroupId(text)
		if errUser != nil && errGroup != nil {
			return uint32(number), nil
		}
	}
	return 0, fmt.Errorf("there is no spare user id from %d on for fetching images", fetcherFirst)
})

// watchEvery is how often the files of a fetcher are looked at.
const watchEvery = 200 * time.Millisecond

// granter answers what a fetcher asks for. Its methods run on the goroutine of the job.
type granter interface {
	// blob opens the file of a blob and says how much of it is there. The file is closed by the caller.
	blob(ctx context.Context, digest Digest, size int64) (*os.File, int64, error)
	layers(ctx context.Context, layers []registry.Layer) ([]bool, error)
	// peer asks other cells for a blob, from an offset on; the file is nil where none gives it.
	peer(ctx context.Context, digest Digest, size, offset int64) (*os.File, registry.Grant)
	lied(why string)
	progress(Progress)
}

// fetch runs one job in a process of its own, and returns when that has ended: what it wrote will not
// change any more. It lasts no longer than the present turn of a pull.
func (c *Client) fetch(job *registry.Job, g granter, p *pull) (registry.Message, error) {
	ctx := p.turn
	if err := c.completeJob(job); err != nil {
		return registry.Message{}, err
	}
	conn, theirs, err := packet.Pair()
	if err != nil {
		return registry.Message{}, err
	}
	defer conn.Close()
	command, err := c.fetcherCommand(theirs)
	ahead := p.wanted != nil && !p.isWanted()
	if err == nil {
		err = start(command, ahead)
	}
	theirs.Close()
	if err != nil {
		return registry.Message{}, fmt.Errorf("cannot start a fetcher: %w", err)
	}
	if ahead {
		defer p.unhurried(func(nice int) { raise(command.Process.Pid, nice) })()
	}
	stop := context.AfterFunc(ctx, func() { _ = command.Process.Kill() })
	w := &watcher{process: command.Process, pace: pace{after: c.options.SlowAfter, mark: time.Now()}}
	if job.Kind != registry.JobResolve { // somebody waits for the answer, and it takes no place
		w.pace.awaited = c.awaited
	}
	quit := make(chan struct{})
	go w.watch(quit)
	var last registry.Message
	if err = conn.Send(job, nil); err == nil {
		last, err = c.converse(ctx, conn, g, w)
	}
	conn.Close()
	if err != nil {
		_ = command.Process.Kill() // it may have more to say, which nobody hears
	}
	_ = command.Wait()
	stop()
	close(quit)
	switch {
	case ctx.Err() != nil:
		return last, context.Cause(ctx)
	case w.overrun() != nil:
		return last, w.overrun()
	}
	return last, err
}

// completeJob adds what the policy and the file of credentials say.
func (c *Client) completeJob(job *registry.Job) error {
	job.Version = registry.Version
	if c.options.Hosts != nil {
		job.Hosts = c.options.Hosts()
	}
	all, err := registry.LoadCredentials(c.options.Credentials, c.options.Owners)
	if err != nil {
		return err
	}
	if credentials, ok := all[registry.HostOf(job.Reference)]; ok {
		job.Credentials = &credentials
	}
	job.Timing = c.options.Timing
	return nil
}

func (c *Client) fetcherCommand(theirs *os.File) (*exec.Cmd, error) {
	first := len(c.options.Command)
	command := exec.Command(c.options.Command[0], append(c.options.Command[1:first:first], registry.Argument)...)
	command.Args[0] = "runnerd"
	command.Stderr = os.Stderr
	command.Dir = "/"
	command.Env = []string{"GOMEMLIMIT=64MiB", "GOTRACEBACK=single"}
	for _, variable := range []string{"SSL_CERT_FILE", "SSL_CERT_DIR"} { // where this host keeps its certificates
		if value, set := os.LookupEnv(variable); set {
			command.Env = append(command.Env, variable+"="+value)
		}
	}
	command.ExtraFiles = []*os.File{theirs}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if os.Geteuid() == 0 {
		id, err := fetcherUser()
		if err != nil {
			return nil, err
		}
		command.SysProcAttr.Credential = &syscall.Credential{Uid: id, Gid: id}
	}
	return command, nil
}

// converse answers the fetcher until its last message.
func (c *Client) converse(ctx context.Context, conn *packet.Conn, g granter, w *watcher) (registry.Message, error) {
	for {
		var m registry.Message
		surplus, err := conn.Receive(&m)
		if surplus != nil {
			surplus.Close()
		}
		if err != nil {
			return m, errors.New("the fetcher ended without a word")
		}
		switch m.Kind {
		case registry.MessageBlob:
			file, offset, err := g.blob(ctx, m.Digest, m.Size)
			if err != nil {
				return m, err
			}
			err = w.add(file, m.Size)
			if err == nil {
				err = conn.Send(registry.Grant{Offset: offset}, file)
			}
			file.Close()
			if err != nil {
				return m, err
			}
		case registry.MessageLayers:
			missing, err := g.layers(ctx, m.Layers)
			if err == nil {
				err = conn.Send(registry.Grant{Missing: missing}, nil)
			}
			if err != nil {
				return m, err
			}
		case registry.MessagePeer:
			file, grant := g.peer(ctx, m.Digest, m.Size, m.Offset)
			err := conn.Send(grant, file)
			if file != nil {
				file.Close()
			}
			if err != nil {
				return m, err
			}
		case registry.MessageLied:
			g.lied(m.Error)
		case registry.MessageProgress:
			g.progress(Progress{Bytes: m.Bytes, Total: m.Total, Layer: m.Layer, Layers: m.LayerCount, From: m.From})
		case registry.MessageDone:
			return m, nil
		case registry.MessageFailed:
			if m.Refused {
				return m, &Refusal{m.Error}
			}
			return m, errors.New(m.Error)
		default:
			return m, fmt.Errorf("the fetcher sends a message of kind %.20q", m.Kind)
		}
	}
}

// watcher ends a fetcher that writes more into its files than it asked for: it counts as taken over. It also ends one
// that is slow while others wait.
type watcher struct {
	process *os.Process
	mutex   sync.Mutex
	files   []watchedFile
	pace    pace
	err     error
}

type watchedFile struct {
	file *os.File
	size int64
}

// grantsMax bounds the blobs of one job: layers, configuration, manifest, index.
const grantsMax = 132

func (w *watcher) add(file *os.File, size int64) error {
	fd, err := syscall.Dup(int(file.Fd()))
	if err != nil {
		return err
	}
	syscall.CloseOnExec(fd)
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.files = append(w.files, watchedFile{os.NewFile(uintptr(fd), file.Name()), size})
	if info, err := file.Stat(); err == nil {
		w.pace.bytes += info.Size() // what is there was not brought now
	}
	if len(w.files) > grantsMax {
		return fmt.Errorf("the fetcher asks for more than %d blobs", grantsMax)
	}
	return nil
}

func (w *watcher) watch(quit chan struct{}) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			w.look()
		case <-quit:
			w.mutex.Lock()
			for _, f := range w.files {
				f.file.Close()
			}
			w.files = nil
			w.mutex.Unlock()
			return
		}
	}
}

func (w *watcher) look() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	bytes := int64(0)
	for _, f := range w.files {
		info, err := f.file.Stat()
		if err != nil {
			continue
		}
		bytes += info.Size()
		if info.Size() > f.size && w.err == nil {
			w.err = &Refusal{fmt.Sprintf("the fetcher wrote %d bytes for a blob of %d", info.Size(), f.size)}
			_ = w.process.Kill()
		}
	}
	if w.pace.slow(time.Now(), bytes) && w.err == nil {
		w.err = errSlow
		_ = w.process.Kill()
	}
}

func (w *watcher) overrun() error {
	w.look()
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.err
}
