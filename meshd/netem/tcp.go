package netem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// SendTCP sends for so long over kernel TCP with congestion control CUBIC, and reads until the end.
func (l *Link) SendTCP(ctx context.Context, howLong time.Duration) (Transfer, error) {
	var listener net.Listener
	err := l.Enter(1, func() (err error) {
		config := net.ListenConfig{Control: CUBIC}
		config.SetMultipathTCP(false)
		listener, err = config.Listen(ctx, "tcp", Addresses[1].String()+":7000")
		return err
	})
	if err != nil {
		return Transfer{}, err
	}
	defer listener.Close()
	var from net.Conn
	err = l.Enter(0, func() (err error) {
		dialer := net.Dialer{Control: CUBIC}
		dialer.SetMultipathTCP(false)
		from, err = dialer.DialContext(ctx, "tcp", listener.Addr().String())
		return err
	})
	if err != nil {
		return Transfer{}, err
	}
	defer from.Close()
	to, err := listener.Accept()
	if err != nil {
		return Transfer{}, err
	}
	defer to.Close()
	began := sample()
	_ = from.SetDeadline(time.Now().Add(howLong))
	go func() {
		for err := error(nil); err == nil; {
			_, err = from.Write(pattern)
		}
		_ = from.(*net.TCPConn).CloseWrite()
	}()
	// What waits in buffers when the time is over is not waited for: at 1 % loss that would be minutes.
	_ = to.SetReadDeadline(time.Now().Add(howLong))
	got, err := io.Copy(io.Discard, to)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return Transfer{}, fmt.Errorf("after %d bytes over TCP: %w", got, err)
	}
	return began.until(sample(), got), nil
}

// CUBIC is a Control function that chooses the congestion control of a socket: the default of a host may be
// another.
func CUBIC(_, _ string, c syscall.RawConn) error {
	var failure error
	err := c.Control(func(fd uintptr) {
		failure = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
	})
	return errors.Join(err, failure)
}
