package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/record"
	"colloid.net/runnerd/sandbox"
)

// An external OCI runtime is driven as its specification says: create makes a process that waits, start
// lets it become the program, delete takes away what is left.
//
// Nothing that holds secrets may reach a disk (F83). The bundle is in memory that a mount namespace of its
// own shows, which ends when create has returned; the files that the container finds stay in it as long as
// the container has them. What the runtime keeps is in memory too, in a directory that root alone enters:
// some runtimes copy config.json there.
const (
	dirState = "runtime"
	// fileProcess in the instance's directory describes processes of the container, without any environment.
	fileProcess = "process.json"
	// externalPatience bounds one call of the runtime.
	externalPatience = 15 * time.Second
	// bundleSize and stateSize bound what lies in memory, in the kernel's words.
	bundleSize = "16m"
	stateSize  = "4m"
)

func external(ctx context.Context, runtime, directory string, arguments ...string) *exec.Cmd {
	all := append([]string{"--root", filepath.Join(directory, dirState)}, arguments...)
	command := exec.CommandContext(ctx, runtime, all...)
	command.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/"}
	command.Dir = directory
	return command
}

// startExternal creates and starts the container. In between it is written down who runs.
func (s *shim) startExternal() error {
	place, err := placeForRoot()
	if err != nil {
		return err
	}
	DeleteExternal(s.config.Runtime, s.config.Directory, s.config.Name) // of a run that was cut off
	state := s.path(dirState)
	if err := os.Mkdir(state, 0o700); err != nil {
		return err
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("tmpfs", state, "tmpfs", flags, "mode=0700,size="+stateSize); err != nil {
		return fmt.Errorf("keep the runtime's state in memory: %w", err)
	}
	pidFile := s.path("runtime.pid")
	_ = os.Remove(pidFile)
	err = besideHost(s.config.Sandbox.Rootfs, place, func() error {
		bundle := filepath.Join(place, "bundle")
		if err := s.writeBundle(bundle, filepath.Join(place, "rootfs")); err != nil {
			return err
		}
		return s.callExternal("create", "--bundle", bundle, "--pid-file", pidFile, s.config.Name)
	})
	if err != nil {
		return err
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("the runtime wrote %.20q as process id", text)
	}
	if s.workload, err = procfs.Find(pid); err != nil {
		return fmt.Errorf("the container ended at once: %w", err)
	}
	if err := s.config.Cgroup.Add(pid); err != nil {
		return err
	}
	if err := record.Keep(s.path(FileRun), processRecord(s.workload)); err != nil {
		return err
	}
	s.config.Session = pid
	return s.callExternal("start", s.config.Name)
}

// writeBundle fills the directory of a bundle. The container's ids must reach its files, not config.json.
func (s *shim) writeBundle(bundle, rootfs string) error {
	files := filepath.Join(bundle, "files")
	for _, path := range []string{bundle, files} {
		if err := os.Mkdir(path, 0o711); err != nil {
			return err
		}
		if err := os.Chmod(path, 0o711); err != nil { // whatever the umask
			return err
		}
	}
	program := sandbox.Program{Arguments: s.config.Arguments, Environment: s.config.Environment}
	config, process, err := sandbox.Bundle(s.config.Sandbox, program, rootfs, files)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o600); err != nil {
		return err
	}
	return record.WriteFile(s.path(fileProcess), process)
}

// placeForRoot is a directory that every user can reach and that no runtime needs.
func placeForRoot() (string, error) {
	for _, path := range []string{"/mnt", "/media", "/srv", "/opt"} {
		if info, err := os.Stat(path); err == nil && info.IsDir() && info.Mode()&1 != 0 {
			return path, nil
		}
	}
	return "", errors.New("an external runtime needs a directory /mnt that everybody may enter")
}

// besideHost runs create in a mount namespace of its own in which the root file system is also at a place
// that the container's ids can reach: the image store is closed to them. The namespace ends with the
// thread, so the host never sees the mounts.
func besideHost(rootfs, place string, create func() error) error {
	result := make(chan error)
	go func() {
		goruntime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("tmpfs", place, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0711,size="+bundleSize)
		}
		if err == nil {
			err = unix.Mkdir(filepath.Join(place, "rootfs"), 0o711)
		}
		if err == nil && rootfs != "" {
			err = unix.Mount(rootfs, filepath.Join(place, "rootfs"), "", unix.MS_BIND, "")
		}
		if err != nil {
			err = fmt.Errorf("show the root file system to the runtime: %w", err)
		} else {
			err = create()
		}
		result <- err
	}()
	return <-result
}

// callExternal runs the runtime; the standard files of create become those of the container. What the
// runtime has to say goes to a log file of its own.
func (s *shim) callExternal(arguments ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), externalPatience)
	defer cancel()
	log := s.path("runtime.log")
	_ = os.Remove(log)
	command := external(ctx, s.config.Runtime, s.config.Directory, append([]string{"--log", log}, arguments...)...)
	command.Stdout, command.Stderr = s.keep, s.keep
	if err := command.Run(); err != nil {
		text, _ := os.ReadFile(log)
		return fmt.Errorf("%s %s: %w: %s", s.config.Runtime, arguments[0], err, lastLine(text))
	}
	return nil
}

// lastLine is the end of what a runtime wrote, on one line.
func lastLine(text []byte) string {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	line := lines[len(lines)-1]
	return string(line[:min(len(line), 400)])
}

// DeleteExternal ends a container of an external runtime and takes away what the runtime keeps of it.
// Nothing need be there.
func DeleteExternal(runtime, directory, name string) {
	state := filepath.Join(directory, dirState)
	if _, err := os.Stat(filepath.Join(state, name)); err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), externalPatience)
		defer cancel()
		_ = external(ctx, runtime, directory, "delete", "--force", name).Run()
	}
	_ = unix.Unmount(state, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) // it is no mount after a restart of the host
	_ = os.RemoveAll(state)
}

// runExternal is Run in a container of an external runtime.
func runExternal(c *Config, timeout time.Duration) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	process, err := writeProcess(c)
	if err != nil {
		return UnknownCode, err
	}
	defer os.Remove(process)
	command := external(ctx, c.Runtime, c.Directory, "exec", "--process", process, c.Name)
	var said bytes.Buffer
	command.Stderr = &head{&said}
	var place string
	if place, err = placeForRoot(); err == nil { // the runtime works in the directory of the root, which need not be the root here
		err = besideHost("", place, command.Run)
	}
	if ctx.Err() != nil {
		return UnknownCode, fmt.Errorf("took longer than %v: %w", timeout, os.ErrDeadlineExceeded)
	}
	var ended *exec.ExitError
	if errors.As(err, &ended) && ended.ExitCode() >= 0 {
		if text := said.Bytes(); bytes.Contains(text, []byte("exec failed")) {
			return UnknownCode, fmt.Errorf("%s exec: %s", c.Runtime, lastLine(text))
		}
		return ended.ExitCode(), nil
	}
	if err != nil {
		return UnknownCode, err
	}
	return 0, nil
}

// describeProcess gives the description of a process other arguments and variables.
func describeProcess(text []byte, arguments, environment []string) ([]byte, error) {
	var process map[string]any
	if err := json.Unmarshal(text, &process); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", fileProcess, err)
	}
	if process == nil { // null
		return nil, fmt.Errorf("%s is damaged: it describes no process", fileProcess)
	}
	process["args"], process["env"] = arguments, environment
	return json.Marshal(process)
}

// writeProcess describes one further process in a file of the runtime's state.
func writeProcess(c *Config) (path string, err error) {
	text, err := os.ReadFile(filepath.Join(c.Directory, fileProcess))
	if err != nil {
		return "", err
	}
	if text, err = describeProcess(text, c.Arguments, c.Environment); err != nil {
		return "", err
	}
	file, err := os.CreateTemp(filepath.Join(c.Directory, dirState), "exec-") // mode 0600
	if err != nil {
		return "", err
	}
	_, err = file.Write(text)
	return file.Name(), errors.Join(err, file.Close())
}

// head keeps the first 4 KiB of what is written to it.
type head struct{ to *bytes.Buffer }

func (t *head) Write(text []byte) (int, error) {
	t.to.Write(text[:min(len(text), max(0, 4096-t.to.Len()))])
	return len(text), nil
}
