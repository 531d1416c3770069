package runnerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/message"
	"colloid.net/runnerd/image"
	"colloid.net/runnerd/policy"
)

// blobPatience bounds how long meshd may take to find a cell that has a blob: it asks three of them.
const blobPatience = 12 * time.Second

// blobRequests are the blobs that meshd was asked to get from other cells (F76). It belongs to the loop's
// goroutine.
type blobRequests struct {
	number  uint64
	waiting map[uint64]*blobRequest
	// deaf is a session that did not answer: an older meshd knows nothing of blobs.
	deaf *session
}

type blobRequest struct {
	session *session
	answer  chan blobAnswer // has room for the one there is
}

type blobAnswer struct {
	file *os.File
	cell uint64
	err  error
}

// peers implements image.Peers.
type peers struct{ supervisor *Supervisor }

var errNoMeshd = errors.New("meshd is not connected")

// Blob implements image.Peers.
func (p peers) Blob(ctx context.Context, image, digest [32]byte, offset int64, avoid []uint64) (*os.File, uint64, error) {
	s := p.supervisor
	var number uint64
	request := &blobRequest{answer: make(chan blobAnswer, 1)}
	err := errNoMeshd
	s.do(func() { number, err = s.askForBlob(request, image, digest, offset, avoid) })
	if err != nil {
		return nil, 0, err
	}
	timer := time.NewTimer(blobPatience)
	defer timer.Stop()
	select {
	case answer := <-request.answer:
		return answer.file, answer.cell, answer.err
	case <-timer.C:
		err = fmt.Errorf("meshd did not find a cell within %v", blobPatience)
	case <-ctx.Done():
		err = ctx.Err()
	case <-s.quit:
		return nil, 0, os.ErrClosed
	}
	s.do(func() {
		if s.blobs.waiting[number] == request && ctx.Err() == nil {
			s.blobs.deaf = request.session
		}
		delete(s.blobs.waiting, number)
	})
	select { // it came at the last moment
	case answer := <-request.answer:
		return answer.file, answer.cell, answer.err
	default:
		return nil, 0, err
	}
}

func (s *Supervisor) askForBlob(request *blobRequest, image, digest [32]byte, offset int64, avoid []uint64) (uint64, error) {
	if s.session == nil || s.session == s.blobs.deaf {
		return 0, errNoMeshd
	}
	s.blobs.number++
	request.session = s.session
	wanted := &message.Wanted{
		Number: s.blobs.number, Image: image[:], Digest: digest[:], Offset: uint64(offset), Avoid: avoid,
	}
	if !s.send(&message.Event{Body: &message.Event_Wanted{Wanted: wanted}}) {
		return 0, errors.New("meshd has too much to do")
	}
	if s.blobs.waiting == nil {
		s.blobs.waiting = map[uint64]*blobRequest{}
	}
	s.blobs.waiting[wanted.Number] = request
	return wanted.Number, nil
}

// take gives an answer to who waits for it, if somebody does.
func (s *Supervisor) takeBlobRequest(from *session, number uint64) *blobRequest {
	request := s.blobs.waiting[number]
	if request == nil || request.session != from {
		return nil
	}
	delete(s.blobs.waiting, number)
	return request
}

// noBlob takes the answer that no cell gives it.
func (s *Supervisor) noBlob(from *session, m *message.NoBlob) {
	if request := s.takeBlobRequest(from, m.Wanted); request != nil {
		err := fmt.Errorf("%.200q", m.Reason)
		if m.Alone {
			err = image.ErrAlone
		}
		request.answer <- blobAnswer{err: err}
	}
	from.acknowledge = true
}

// blobsGone ends what waits for a meshd that is not connected any more.
func (s *Supervisor) blobsGone(from *session) {
	for number, request := range s.blobs.waiting {
		if request.session == from {
			delete(s.blobs.waiting, number)
			request.answer <- blobAnswer{err: errNoMeshd}
		}
	}
}

// attachSink makes the socket through which a blob comes: meshd writes, the fetcher reads.
func (s *Supervisor) attachSink(from *session, channel uint64, m *message.BlobSink) {
	request := s.takeBlobRequest(from, m.Wanted)
	if request == nil {
		s.attached(from, channel, errors.New("nobody waits for this blob any more"))
		return
	}
	s.pass(from, channel, func() (*os.File, error) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			request.answer <- blobAnswer{err: err}
			return nil, err
		}
		request.answer <- blobAnswer{file: os.NewFile(uintptr(pair[0]), "blob"), cell: m.Cell}
		return os.NewFile(uintptr(pair[1]), "blob"), nil
	})
}

// attachBlob gives a blob that another cell asked for, if the policy shares it.
func (s *Supervisor) attachBlob(from *session, channel uint64, m *message.Blob) error {
	if len(m.Digest) != 32 || m.Offset > 1<<62 {
		return fmt.Errorf("attach names a blob by %d bytes at %d", len(m.Digest), m.Offset)
	}
	if from.attaching >= attachesMax {
		s.attached(from, channel, fmt.Errorf("%d descriptors are being made already: try again", attachesMax))
		return nil
	}
	digest := image.Digest(m.Digest)
	s.pass(from, channel, func() (*os.File, error) {
		file, err := s.images.Shared(digest, int64(m.Offset))
		s.post(func() {
			decision := "allowed: another cell pulls it"
			if err != nil {
				decision = "denied: " + err.Error()
			}
			s.audit.write(from.peer, from.sequence, "give blob "+digest.String(), decision)
		})
		return file, err
	})
	return nil
}

// sharing tells the image store what the policy says. It runs outside the loop.
func (s *Supervisor) sharing() policy.Sharing {
	sharing := policy.ShareNone
	s.do(func() { sharing = s.policy.ImagesShared })
	return sharing
}
