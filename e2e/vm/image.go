package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// archive writes the format of initial RAM disks (cpio "newc").
type archive struct {
	out   *bufio.Writer
	inode int
	size  int64
	err   error
}

const (
	modeDirectory = 0o040755
	modeProgram   = 0o100755
	modeFile      = 0o100644
	modeLink      = 0o120777
)

func (a *archive) entry(name string, mode int, size int64, content io.Reader) {
	if a.err != nil {
		return
	}
	a.inode++
	header := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0)
	a.write(header + name + "\x00")
	a.pad()
	if content != nil && a.err == nil {
		var n int64
		n, a.err = io.Copy(a.out, io.LimitReader(content, size))
		a.size += n
		if a.err == nil && n != size {
			a.err = fmt.Errorf("%s has %d bytes instead of %d", name, n, size)
		}
		a.pad()
	}
}

func (a *archive) write(text string) {
	if a.err == nil {
		_, a.err = a.out.WriteString(text)
		a.size += int64(len(text))
	}
}

func (a *archive) pad() {
	a.write(strings.Repeat("\x00", int(-a.size&3)))
}

func (a *archive) directory(name string) { a.entry(name, modeDirectory, 0, nil) }

func (a *archive) text(name string, mode int, content string) {
	a.entry(name, mode, int64(len(content)), strings.NewReader(content))
}

func (a *archive) file(name string, mode int, path string) {
	file, err := os.Open(path)
	if err != nil {
		a.err = err
		return
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		a.err = err
		return
	}
	a.entry(name, mode, info.Size(), file)
}

// writeImage makes the initial RAM disk of the guest.
func writeImage(path string, k kernel, work string, chosen []suite) error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return cannot{fmt.Errorf("busybox is not installed (apt-get install busybox-static)")}
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	a := &archive{out: bufio.NewWriterSize(out, 1<<20)}
	for _, name := range []string{"bin", "sbin", "dev", "proc", "sys", "etc", "tmp", "root", "modules", "t", "new", "usr", "usr/bin", "var", "run"} {
		a.directory(name)
	}
	a.file("bin/busybox", modeProgram, busybox)
	a.text("bin/sh", modeLink, "busybox")
	a.text("etc/passwd", modeFile, "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
	a.text("etc/group", modeFile, "root:x:0:\nnogroup:x:65534:\n")
	a.text("etc/hosts", modeFile, "127.0.0.1 localhost\n::1 localhost\n")
	var load strings.Builder
	for n, module := range k.modules {
		name := fmt.Sprintf("modules/%02d-%s", n, filepath.Base(module))
		a.file(name, modeFile, module)
		fmt.Fprintf(&load, "insmod /%s || echo cannot load %s\n", name, filepath.Base(module))
	}
	var tests strings.Builder
	for _, s := range chosen {
		a.file("t/"+s.name+".test", modeProgram, filepath.Join(work, s.name+".test"))
		fmt.Fprintf(&tests, "run %s '%s'\n", s.name, s.run)
	}
	a.text("init", modeProgram, strings.ReplaceAll(initScript, "LOAD\n", load.String()))
	a.text("main", modeProgram, strings.ReplaceAll(mainScript, "TESTS\n", tests.String()))
	a.entry("TRAILER!!!", 0, 0, nil)
	if a.err == nil {
		a.err = a.out.Flush()
	}
	return a.err
}

// initScript leaves the initial RAM disk for a file system that can be left in its turn: pivot_root refuses
// the former.
const initScript = `#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
LOAD
mount -t tmpfs -o size=80% tmpfs /new
for part in bin sbin etc t main usr root; do cp -a /$part /new/; done
mkdir -p /new/dev /new/proc /new/sys /new/tmp /new/var /new/run
umount /proc
exec switch_root /new /main
`

// mainScript runs the suites, shows what they print on the first serial port and says the result on the
// second.
const mainScript = `#!/bin/sh
export PATH=/bin:/sbin HOME=/root TMPDIR=/tmp COLLOID_VM=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /tmp
chmod 1777 /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
hostname guest
code=0
run() {
	echo "vm: suite $1"
	cd /t
	"/t/$1.test" -test.v -test.timeout 6m -test.run "$2" || code=1
}
TESTS
sync
echo "EXIT:$code" > /dev/ttyS1
poweroff -f
`
