package runnerd

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"colloid.net/runnerd/policy"
	"colloid.net/runnerd/shim"
	"colloid.net/runnerd/trust"
)

// processBackend runs binaries of the host that the policy lists, by descriptor (F145).
type processBackend struct {
	owners trust.Users
}

func (b *processBackend) identity(j *launchJob) {
	j.config.Identity, j.config.UID, j.config.GID = canSwitchUser(), j.permit.User.UID, j.permit.User.GID
}

func (b *processBackend) prepare(_ context.Context, j *launchJob) (*os.File, error) {
	b.identity(j)
	j.config.Arguments = append([]string{j.permit.Process.Path}, j.spec.Arguments...)
	if err := writeFiles(j.config.Directory, j.files, j.config.Identity, j.config.UID, j.config.GID); err != nil {
		return nil, err
	}
	return openBinary(b.owners, j.permit.Process, j.spec.ImageDigest)
}

func (b *processBackend) release(string) error { return nil }

func (b *processBackend) exec(j *launchJob, arguments []string) (*shim.Config, *os.File, error) {
	b.identity(j)
	j.config.Arguments = arguments
	process := j.permit.Health
	if j.operator { // who may run what the workload's user may run
		path, err := findProgram(arguments[0])
		if err != nil {
			return nil, nil, err
		}
		process = &policy.Process{Path: path, AnyDigest: true}
	}
	binary, err := openBinary(b.owners, process, [32]byte{})
	return &j.config, binary, err
}

// findProgram looks a name up on the search path that processes of the host get.
func findProgram(name string) (string, error) {
	if filepath.IsAbs(name) {
		return filepath.Clean(name), nil
	}
	if strings.Contains(name, "/") {
		return "", fmt.Errorf("%.100q is no absolute path", name)
	}
	for _, directory := range filepath.SplitList(defaultPath) {
		path := filepath.Join(directory, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no program %.100q in %s", name, defaultPath)
}

// openBinary opens a listed binary and checks what it opened: the file that is executed is the very
// one whose digest was taken, through its descriptor (F145).
func openBinary(owners trust.Users, process *policy.Process, wanted [32]byte) (*os.File, error) {
	file, path, err := owners.OpenFile(process.Path)
	if err != nil {
		return nil, denial{fmt.Errorf("%s may not run: %w", process.Path, err)}
	}
	if err := checkBinary(file, path, process, wanted); err != nil {
		file.Close()
		return nil, denial{err}
	}
	return file, nil
}

func checkBinary(file *os.File, path string, process *policy.Process, wanted [32]byte) error {
	var magic [4]byte
	if _, err := file.ReadAt(magic[:], 0); err != nil || string(magic[:]) != "\x7fELF" {
		return fmt.Errorf("%s is no binary: to run a script, list its interpreter and pass the script as an argument",
			path)
	}
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		return fmt.Errorf("%s is set-user-id or set-group-id and is never run", path)
	}
	if process.AnyDigest && wanted == ([32]byte{}) {
		return nil
	}
	if info.Size() > binarySizeMax {
		return fmt.Errorf("%s has %d bytes, expected at most %d", path, info.Size(), binarySizeMax)
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, io.NewSectionReader(file, 0, binarySizeMax)); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return process.Accepts([32]byte(hash.Sum(nil)), wanted)
}
