package uds

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
)

var ErrNotFound = errors.New("uds: not found")

type ReplyError struct {
	Errno uint16
	Text  string
}

func (e *ReplyError) Error() string { return e.Text }

type ConflictError struct{ Entries Entries }

func (e *ConflictError) Error() string { return "conflict" }

const GroupRead = "colloid"

type Client struct{ c net.Conn }

func Dial(path string) (*Client, error) {
	c, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	return &Client{c}, nil
}
func (c *Client) Close() error { return c.c.Close() }
func (c *Client) Do(code Code, payload []byte) ([]byte, error) {
	f := binary.BigEndian.AppendUint32(nil, uint32(code)<<24|uint32(len(payload)))
	if _, err := c.c.Write(append(f, payload...)); err != nil {
		return nil, err
	}
	var all []byte
	for {
		var h [4]byte
		if _, err := io.ReadFull(c.c, h[:]); err != nil {
			return nil, err
		}
		n := binary.BigEndian.Uint32(h[:]) & 0xffffff
		b := make([]byte, n)
		if _, err := io.ReadFull(c.c, b); err != nil {
			return nil, err
		}
		switch ReplyStatus(h[0]) {
		case OK:
			if n == 0 {
				return all, nil
			}
			all = append(all, b...)
		case NotFound:
			return nil, ErrNotFound
		case Conflict:
			var e ConflictError
			if err := json.Unmarshal(b, &e.Entries); err != nil {
				return nil, err
			}
			return nil, &e
		default:
			return nil, &ReplyError{binary.BigEndian.Uint16(b), string(b[2:])}
		}
	}
}
