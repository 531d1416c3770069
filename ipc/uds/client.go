package uds

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Groups that may use the socket (F135).
const (
	GroupRead  = "colloid"
	GroupWrite = "colloid-admin"
)

// ReplyMax bounds a whole reply.
const ReplyMax = 64 << 20

// DefaultTimeout is how long Do waits for the reply to an ordinary command.
const DefaultTimeout = 15 * time.Second

// ErrNotFound is returned by Do when the named thing does not exist.
var ErrNotFound = errors.New("not found")

// ReplyError is an ERROR reply. Its text is meant for people and says all there is to say.
type ReplyError struct {
	Errno uint16
	Text  string
}

func (e *ReplyError) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("the daemon refused with error %d", e.Errno)
	}
	return e.Text
}

// ConflictError says that a key holds something else than the writer has seen (F55).
type ConflictError struct{ Entries Entries }

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s has changed meanwhile: it now holds %d values", e.Entries.Key, len(e.Entries.Entries))
}

// Client is one connection to the daemon. Its methods may be called from several goroutines, one
// command at a time.
type Client struct {
	// Timeout is for one command: DefaultTimeout if zero, none if negative. Connect and Leave take as
	// long as they take.
	Timeout time.Duration

	mutex      sync.Mutex // guards what follows
	connection connection
	input      *bufio.Reader // of incoming
	incoming   incoming
	broken     error
}

// connection is what a Client needs of one. During a command one goroutine uses it; Close ends that.
type connection interface {
	io.ReadWriteCloser
	SetDeadline(time.Time) error
}

// Dial connects to the daemon's socket. During a command of the client a thread of the program waits in the
// kernel.
func Dial(path string) (*Client, error) {
	polled, err := dial(path)
	if err != nil {
		return nil, err
	}
	blocks, err := newBlocking(polled)
	if err != nil {
		return nil, fmt.Errorf("cannot use the connection to %s: %w", path, err)
	}
	return newClient(blocks), nil
}

func dial(path string) (*net.UnixConn, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	connection, err := net.DialTimeout("unix", path, 5*time.Second)
	switch {
	case err == nil:
		return connection.(*net.UnixConn), nil
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("%w for %s: run as root or join group %s "+
			"(`usermod -aG %s USER`), for changes %s too", os.ErrPermission, path, GroupRead, GroupRead, GroupWrite)
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("no daemon is running at %s: start it with `colloid`", path)
	case errors.Is(err, syscall.EAGAIN):
		return nil, fmt.Errorf("the daemon at %s accepts no connections at the moment: try again", path)
	case errors.Is(err, syscall.EPROTOTYPE), errors.Is(err, syscall.ENOTSOCK):
		return nil, fmt.Errorf("%s is not the socket of a daemon", path)
	}
	return nil, fmt.Errorf("cannot connect to %s: %w", path, err)
}

func newClient(connection connection) *Client {
	c := &Client{connection: connection, incoming: incoming{connection: connection}}
	c.input = bufio.NewReader(&c.incoming)
	return c
}

// Close ends the connection.
func (c *Client) Close() error { return c.connection.Close() }

// Do sends a command and returns the payload of its reply. Errors: ErrNotFound, *ConflictError,
// *ReplyError, or one of the connection, after which the client is of no more use.
func (c *Client) Do(code Code, payload []byte) ([]byte, error) {
	if len(payload) > RequestMax {
		return nil, fmt.Errorf("request of %d bytes: at most %d are possible", len(payload), RequestMax)
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.do(code, payload)
}

// DoFile is Do for a reply that brings a descriptor, which is the caller's then. file is nil with an error.
func (c *Client) DoFile(code Code, payload []byte) (reply []byte, file *os.File, err error) {
	if len(payload) > RequestMax {
		return nil, nil, fmt.Errorf("request of %d bytes: at most %d are possible", len(payload), RequestMax)
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.incoming.wanted = true
	reply, err = c.do(code, payload)
	c.incoming.wanted = false
	file, c.incoming.file = c.incoming.file, nil
	if err == nil && file == nil {
		err = errors.New("the daemon's reply lacks its descriptor")
	}
	if err != nil && file != nil {
		file.Close()
		file = nil
	}
	return reply, file, err
}

// do sends a command and waits for its reply. The caller holds the lock.
func (c *Client) do(code Code, payload []byte) ([]byte, error) {
	if c.broken != nil {
		return nil, c.broken
	}
	if err := c.connection.SetDeadline(c.deadline(code)); err != nil {
		return nil, c.fail(err)
	}
	// A write error is not final: the daemon may have refused with a reply before it hung up.
	writeErr := WriteFrame(c.connection, byte(code), payload)
	reply, err := c.read()
	if err != nil && !isReply(err) {
		if writeErr != nil {
			err = writeErr
		}
		return nil, c.fail(err)
	}
	return reply, err
}

// DoJSON is Do for replies that are JSON documents.
func (c *Client) DoJSON(code Code, payload []byte, document any) error {
	reply, err := c.Do(code, payload)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(reply, document); err != nil {
		return fmt.Errorf("the daemon's reply is not understood, it may be of another version: %w", err)
	}
	return nil
}

func (c *Client) deadline(code Code) time.Time {
	timeout := c.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	if timeout < 0 || code == CodeConnect || code == CodeLeave {
		return time.Time{}
	}
	return time.Now().Add(timeout)
}

func (c *Client) fail(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errors.New("the daemon does not answer")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.EPIPE),
		errors.Is(err, syscall.ECONNRESET):
		err = errors.New("the daemon has closed the connection")
	}
	c.broken = err
	return err
}

func isReply(err error) bool {
	var reply *ReplyError
	var conflict *ConflictError
	return errors.Is(err, ErrNotFound) || errors.As(err, &reply) || errors.As(err, &conflict)
}

// read collects the frames of one reply.
func (c *Client) read() ([]byte, error) {
	var whole []byte
	for {
		status, payload, err := ReadFrame(c.input, OutputQueueMax, nil)
		if err != nil {
			return nil, err
		}
		switch ReplyStatus(status) {
		case OK:
			if len(payload) == 0 {
				return whole, nil
			}
			if len(whole)+len(payload) > ReplyMax {
				return nil, fmt.Errorf("the reply is larger than %d bytes", ReplyMax)
			}
			whole = append(whole, payload...)
		case Error:
			return nil, parseError(payload)
		case NotFound:
			return nil, ErrNotFound
		case Conflict:
			return nil, parseConflict(payload)
		default:
			return nil, fmt.Errorf("reply status %d is unknown: the daemon may be of a later version", status)
		}
	}
}

func parseError(payload []byte) error {
	if len(payload) < 2 {
		return &ReplyError{Errno: ErrorIO}
	}
	return &ReplyError{Errno: uint16(payload[0])<<8 | uint16(payload[1]), Text: string(payload[2:])}
}

func parseConflict(payload []byte) error {
	var conflict ConflictError
	if err := json.Unmarshal(payload, &conflict.Entries); err != nil {
		return fmt.Errorf("the daemon's reply is not understood: %w", err)
	}
	return &conflict
}
