package store

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"colloid.net/ipc/packet"
	"colloid.net/runnerd/image/manifest"
)

// Serve answers requests until the other side hangs up (nil) or nobody has asked for anything for the
// given time (nil). A request that breaks the protocol ends it with an error.
func (s *Store) Serve(conn *packet.Conn, idle time.Duration) error {
	server := &server{store: s, conn: conn, slots: make(chan struct{}, RequestsMax)}
	quit := make(chan struct{})
	defer close(quit)
	server.touch()
	go server.watch(idle, quit)
	for {
		var request Request
		file, err := conn.Receive(&request)
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed):
			server.running.Wait()
			return nil
		case err != nil:
			return err
		case request.Version != Version:
			return fmt.Errorf("request of version %d, expected %d", request.Version, Version)
		}
		server.begin()
		server.slots <- struct{}{}
		server.running.Add(1)
		go func() {
			defer func() { <-server.slots; server.running.Done(); server.end() }()
			if file != nil {
				defer file.Close()
			}
			server.answer(&request, file)
		}()
	}
}

type server struct {
	store   *Store
	conn    *packet.Conn
	slots   chan struct{}
	running sync.WaitGroup

	mutex  sync.Mutex
	active int
	last   time.Time // when the last request ended
}

func (v *server) touch() { v.mutex.Lock(); v.last = time.Now(); v.mutex.Unlock() }
func (v *server) begin() { v.mutex.Lock(); v.active++; v.mutex.Unlock() }
func (v *server) end()   { v.mutex.Lock(); v.active--; v.last = time.Now(); v.mutex.Unlock() }

// watch closes the connection when nothing happened for a while. A request that is on its way then is
// answered by the next process: runnerd sees end of file and starts it.
func (v *server) watch(idle time.Duration, quit chan struct{}) {
	tick := time.NewTicker(max(idle/4, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-quit:
			return
		case <-tick.C:
		}
		v.mutex.Lock()
		over := v.active == 0 && time.Since(v.last) > idle
		v.mutex.Unlock()
		if over {
			v.conn.Close()
			return
		}
	}
}

// answer carries out one request and sends what belongs to it; the last reply has Done.
func (v *server) answer(request *Request, file *os.File) {
	reply := Reply{ID: request.ID, Done: true}
	var unsent error // why a reply could not be sent, the first one
	send := func(r Reply) {
		r.ID = request.ID
		if err := v.conn.Send(r, nil); unsent == nil {
			unsent = err
		}
	}
	err := v.carryOut(request, file, &reply, send)
	if err == nil && unsent == nil {
		send(reply)
	}
	if err == nil && unsent != nil {
		// Longer than a message. Who asked must not wait for ever for it. (A peer that is gone ends Receive too.)
		err = fmt.Errorf("image store: the answer about this image cannot be given: %w", unsent)
	}
	if err != nil {
		var no refusal
		send(Reply{Done: true, Error: shorten(err.Error()), Absent: errors.Is(err, ErrAbsent), Refused: errors.As(err, &no),
			GaveWay: errors.Is(err, errGaveWay)})
	}
}

const errorMax = 2048

func shorten(text string) string {
	if len(text) > errorMax {
		return text[:errorMax] + "..."
	}
	return text
}

func (v *server) carryOut(q *Request, file *os.File, reply *Reply, send func(Reply)) (err error) {
	progress := func(layer, layers int, bytes int64) { send(Reply{Layer: layer, Layers: layers, Bytes: bytes}) }
	var image Image
	var config manifest.Config
	s := v.store
	switch q.Operation {
	case OperationFind:
		image, config, err = s.Find(q.Digest)
		reply.Image, reply.Config = &image, &config
	case OperationMissing:
		if len(q.Diffs) > manifest.LayersMax {
			return fmt.Errorf("%d layers, expected at most %d", len(q.Diffs), manifest.LayersMax)
		}
		reply.Missing = s.Missing(q.Diffs)
	case OperationImport:
		image, config, err = s.Import(Blobs(filepath.Join(s.directory, blobsName)),
			Wanted{References: named(q.Reference), Digest: q.Digest, Architecture: q.Architecture, Ahead: q.Ahead}, progress)
		reply.Image, reply.Config = &image, &config
	case OperationLoad:
		if file == nil {
			return errors.New("the request carries no file")
		}
		return s.Load(file, q.Architecture, progress, func(i Image) { send(Reply{Image: &i}) })
	case OperationMount:
		reply.Path, err = s.Mount(q.Name, q.Digest, q.IDs, q.DiskMiB)
	case OperationExpect:
		err = s.namespaces.expect(q.IDs)
	case OperationUnmount:
		err = s.Unmount(q.Name)
	case OperationRemove:
		if len(q.Names) > 0 {
			return s.RemoveNames(q.Digest, q.Names)
		}
		err = s.Remove(q.Digest)
	case OperationList:
		var images []Image
		images, err = s.List()
		for i := range images {
			send(Reply{Image: &images[i]})
		}
	default:
		err = fmt.Errorf("operation %.40q is unknown", q.Operation)
	}
	return err
}

func named(reference string) []string {
	if reference == "" {
		return nil
	}
	return []string{reference}
}
