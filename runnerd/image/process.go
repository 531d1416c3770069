package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/packet"
	"colloid.net/runnerd/image/store"
)

// process is a running `runnerd images`.
type process struct {
	conn *packet.Conn
	pid  int // which is its session and group too

	mutex   sync.Mutex
	next    uint64
	waiting map[uint64]chan store.Reply
	over    error // once ended is closed: why no answer will come any more
	ended   chan struct{}
}

// repliesQueued bounds the replies to one request that wait to be looked at. Beyond it the reader waits,
// and with it the store.
const repliesQueued = 64

// errEnded means that the process ended before it answered. Whatever was asked may be asked again: every
// request says how things should be, and not how they should change.
var errEnded = errors.New("the image store ended")

// request asks the store and gives its last reply; others go to each. A store that just ended, because it
// was idle or killed, is started once more.
func (c *Client) request(ctx context.Context, q store.Request, file *os.File, each func(store.Reply)) (store.Reply, error) {
	if os.Geteuid() != 0 {
		return store.Reply{}, &Refusal{ErrNoRoot.Error()}
	}
	for try := 0; ; try++ {
		p, err := c.connect()
		if err != nil {
			return store.Reply{}, err
		}
		reply, err := p.request(ctx, q, file, each)
		if errors.Is(err, errEnded) && try < 1 {
			continue
		}
		return reply, err
	}
}

// connect gives the running process or starts one.
func (c *Client) connect() (*process, error) {
	c.storeMutex.Lock()
	defer c.storeMutex.Unlock()
	if c.process != nil {
		select {
		case <-c.process.ended:
		default:
			return c.process, nil
		}
	}
	c.mutex.Lock()
	closed := c.closed
	c.mutex.Unlock()
	if closed {
		return nil, os.ErrClosed
	}
	p, err := c.start()
	if err != nil {
		return nil, fmt.Errorf("cannot start the image store: %w", err)
	}
	c.process = p
	return p, nil
}

func (c *Client) start() (*process, error) {
	conn, theirs, err := packet.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	arguments := append(c.options.Command[1:len(c.options.Command):len(c.options.Command)], store.Argument,
		c.options.Directory, c.options.Idle.String())
	command := exec.Command(c.options.Command[0], arguments...)
	command.Args[0] = "runnerd"
	command.Stderr = os.Stderr
	command.Dir = "/"
	command.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GOTRACEBACK=single"}
	command.ExtraFiles = []*os.File{theirs}
	// It needs no network, so it gets an empty one. A session of its own: no terminal, no control-C.
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNET}
	if err := command.Start(); err != nil {
		conn.Close()
		return nil, err
	}
	p := &process{conn: conn, pid: command.Process.Pid, waiting: map[uint64]chan store.Reply{}, ended: make(chan struct{})}
	go func() {
		p.over = p.read()
		close(p.ended) // before it is waited for: the next one may start, and waits for this one itself
		conn.Close()
		_ = command.Wait() // what it had to say is on standard error
	}()
	return p, nil
}

// read hands replies to those who wait for them until the connection ends.
func (p *process) read() error {
	for {
		var reply store.Reply
		file, err := p.conn.Receive(&reply)
		if file != nil {
			file.Close() // the store has none to give
		}
		if err != nil {
			return errEnded
		}
		p.mutex.Lock()
		waiting := p.waiting[reply.ID]
		if reply.Done {
			delete(p.waiting, reply.ID)
		}
		p.mutex.Unlock()
		if waiting != nil {
			waiting <- reply
		}
	}
}

func (p *process) request(ctx context.Context, q store.Request, file *os.File, each func(store.Reply)) (store.Reply, error) {
	replies := make(chan store.Reply, repliesQueued)
	p.mutex.Lock()
	p.next++
	q.ID, q.Version = p.next, store.Version
	p.waiting[q.ID] = replies
	p.mutex.Unlock()
	if err := p.conn.Send(q, file); err != nil {
		p.forget(q.ID, replies)
		return store.Reply{}, fmt.Errorf("%w: %w", errEnded, err)
	}
	for {
		select {
		case reply := <-replies:
			if reply.Done {
				return reply, replyError(&reply)
			}
			if each != nil {
				each(reply)
			}
		case <-p.ended:
			select {
			case reply := <-replies: // its last words
				if reply.Done {
					return reply, replyError(&reply)
				}
			default:
				return store.Reply{}, p.over
			}
		case <-ctx.Done():
			p.forget(q.ID, replies)
			return store.Reply{}, ctx.Err()
		}
	}
}

// forget stops waiting for a reply, and keeps the reader from waiting for a place in its queue.
func (p *process) forget(id uint64, replies chan store.Reply) {
	p.mutex.Lock()
	delete(p.waiting, id)
	p.mutex.Unlock()
	for {
		select {
		case <-replies:
		default:
			return
		}
	}
}

func replyError(r *store.Reply) error {
	switch {
	case r.Error == "":
		return nil
	case r.Absent:
		return store.ErrAbsent
	case r.Refused:
		return &Refusal{r.Error}
	}
	return errors.New(r.Error)
}
