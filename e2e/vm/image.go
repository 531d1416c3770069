package main

import (
	"bufio"
	"context"
	"errors"
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

// writeInitial makes the initial RAM disk of the guest: what finds the disk.
func writeInitial(path string, k kernel) error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return missing("busybox")
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	a := &archive{out: bufio.NewWriterSize(out, 1<<20)}
	for _, name := range []string{"bin", "dev", "proc", "modules", "new"} {
		a.directory(name)
	}
	a.file("bin/busybox", modeProgram, busybox)
	a.text("bin/sh", modeLink, "busybox")
	var load strings.Builder
	for n, module := range k.modules {
		name := fmt.Sprintf("modules/%02d-%s", n, filepath.Base(module))
		a.file(name, modeFile, module)
		fmt.Fprintf(&load, "insmod /%s || echo vm: cannot load %s\n", name, filepath.Base(module))
	}
	a.text("init", modeProgram, strings.ReplaceAll(initScript, "LOAD\n", load.String()))
	a.entry("TRAILER!!!", 0, 0, nil)
	if a.err == nil {
		a.err = a.out.Flush()
	}
	return a.err
}

// diskMiB is the size of the guest's disk; the file is sparse.
const diskMiB = 2048

// writeDisk makes the guest's root file system of a directory that has the suites and programs. It counts what
// projects use, as limits of containers need it.
func writeDisk(ctx context.Context, path, root string, chosen []suite) error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return missing("busybox")
	}
	tool, err := exec.LookPath("mke2fs")
	if err != nil {
		if tool, err = exec.LookPath("/sbin/mke2fs"); err != nil {
			return missing("mke2fs")
		}
	}
	for _, name := range []string{"bin", "sbin", "dev", "proc", "sys", "etc", "tmp", "root", "usr/bin", "var", "run"} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			return err
		}
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		return err
	}
	var tests strings.Builder
	if chosen[0].counted {
		tests.WriteString("export COLLOID_VM_COUNTED=1\n")
	}
	for _, s := range chosen {
		fmt.Fprintf(&tests, "run %s '%s' '%s'\n", s.name, s.run, s.leave)
	}
	files := []struct {
		name, content string
		mode          os.FileMode
	}{
		{"bin/busybox", string(program), 0o755},
		{"main", strings.ReplaceAll(mainScript, "TESTS\n", tests.String()), 0o755},
		{"etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n", 0o644},
		{"etc/group", "root:x:0:\nnogroup:x:65534:\n", 0o644},
		{"etc/hosts", "127.0.0.1 localhost\n::1 localhost\n", 0o644},
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(root, f.name), []byte(f.content), f.mode); err != nil {
			return err
		}
	}
	if err := os.Symlink("busybox", filepath.Join(root, "bin", "sh")); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	make := exec.CommandContext(ctx, tool, "-q", "-F", "-t", "ext4", "-O", "quota,project,^has_journal",
		"-E", "quotatype=prjquota,lazy_itable_init=1,root_owner=0:0", "-I", "256", "-d", root,
		path, fmt.Sprintf("%dM", diskMiB))
	make.Stderr = os.Stderr
	if err := make.Run(); err != nil {
		return fmt.Errorf("mke2fs: %w", err)
	}
	return nil
}

// initScript leaves the initial RAM disk for the disk.
const initScript = `#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs devtmpfs /dev
LOAD
mount -t ext4 -o prjquota,noatime /dev/vda /new || echo vm: cannot mount the disk
umount /proc
umount /dev
exec switch_root /new /main
`

// suiteMark begins the line before a suite's output.
const suiteMark = "vm: suite "

// mainScript runs the suites, shows what they print on the first serial port and says the result on the
// second.
const mainScript = `#!/bin/sh
/bin/busybox --install -s /bin
export PATH=/bin:/sbin HOME=/root TMPDIR=/tmp COLLOID_VM=1 COLLOID_TEST_PROGRAMS=/` + programsName + `
chown -R 0:0 /bin /etc /main /root /run /tmp /usr /var /` + testsName + ` /` + programsName + `
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /dev/pts /dev/mqueue
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
chmod 1777 /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
hostname guest
code=0
run() {
	echo "` + suiteMark + `$1"
	cd /` + testsName + `
	"/` + testsName + `/$1.test" -test.v -test.timeout 10m -test.run "$2" ${3:+-test.skip "$3"} || code=1
}
TESTS
sync
echo "EXIT:$code" > /dev/ttyS1
poweroff -f
`
