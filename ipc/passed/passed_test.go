package passed

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// rights is one control message whose data has the given length, whatever that means.
func rights(level, kind int32, data []byte) []byte {
	control := make([]byte, unix.CmsgSpace(len(data)))
	binary.NativeEndian.PutUint64(control, uint64(unix.CmsgLen(len(data))))
	binary.NativeEndian.PutUint32(control[8:], uint32(level))
	binary.NativeEndian.PutUint32(control[12:], uint32(kind))
	copy(control[unix.CmsgLen(0):], data)
	return control
}

func TestDescriptorsOfSeveralMessages(t *testing.T) {
	control := append(unix.UnixRights(5, 6), unix.UnixRights(7)...)
	if list, err := Descriptors(control); err != nil || !slices.Equal(list, []int{5, 6, 7}) {
		t.Fatalf("%v, %v", list, err)
	}
	other := append(rights(unix.SOL_SOCKET, unix.SCM_CREDENTIALS, make([]byte, 12)), control...)
	if list, err := Descriptors(other); !errors.Is(err, ErrControl) || !slices.Equal(list, []int{5, 6, 7}) {
		t.Fatalf("beside credentials: %v, %v", list, err)
	}
}

// A message of rights that ends within a descriptor made the function of the library panic.
func TestHalfADescriptorIsRefused(t *testing.T) {
	if list, err := Descriptors(rights(unix.SOL_SOCKET, unix.SCM_RIGHTS, make([]byte, 5))); err == nil || len(list) > 0 {
		t.Fatalf("%v, %v", list, err)
	}
}

func TestCloseClosesAll(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	defer write.Close()
	copied, err := unix.Dup(int(read.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	Close([]int{copied, -1})
	if _, err := unix.FcntlInt(uintptr(copied), unix.F_GETFD, 0); err == nil {
		t.Fatal("still open")
	}
}

func FuzzDescriptors(f *testing.F) {
	f.Add([]byte{})
	f.Add(unix.UnixRights(3))
	f.Add(append(unix.UnixRights(1, 2, 3), rights(unix.SOL_SOCKET, unix.SCM_RIGHTS, make([]byte, 5))...))
	f.Add(rights(unix.SOL_SOCKET, unix.SCM_CREDENTIALS, make([]byte, 12)))
	f.Fuzz(func(t *testing.T, control []byte) {
		list, err := Descriptors(control)
		if len(list)*4 > len(control) {
			t.Fatalf("%d descriptors in %d bytes", len(list), len(control))
		}
		if err != nil {
			if !errors.Is(err, ErrControl) {
				t.Fatal(err)
			}
			return
		}
		if len(list) == 0 {
			return
		}
		if again, err := Descriptors(unix.UnixRights(list...)); err != nil || !slices.Equal(again, list) {
			t.Fatalf("%v became %v, %v", list, again, err)
		}
	})
}
