package runnerd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"colloid.net/ipc/message"
	"colloid.net/runnerd/policy"
	"colloid.net/workload"
)

// dirFiles is the directory of an instance that holds the files of its environment; variableFiles tells a
// process where it is.
const (
	dirFiles      = "files"
	variableFiles = "COLLOID_FILES"
)

// awaitsEnvironment reports whether the instance cannot be started before a Start command brings what its
// specification only names. Variables are kept in memory: on the disk they would be plain (F83).
func (i *instance) awaitsEnvironment() bool {
	return i.spec != nil && i.spec.EnvironmentDigest != [32]byte{} && i.supplied == nil
}

// errNoEnvironment refuses a first start without what the specification names.
var errNoEnvironment = errors.New("the command lacks the secrets and files that the specification names")

// supply takes the environment of a Start command. What breaks a rule is refused; meshd is not trusted to have
// checked it.
func (i *instance) supply(m *message.Start, permit policy.Permit) error {
	if i.spec.EnvironmentDigest == [32]byte{} {
		if len(m.Environment) > 0 || len(m.Files) > 0 {
			return errors.New("the command brings secrets or files that the specification does not name")
		}
		return nil
	}
	if len(m.Environment) == 0 && len(m.Files) == 0 {
		return errNoEnvironment
	}
	supplied := new(workload.Environment)
	for _, text := range m.Environment {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return errors.New("a secret of the command is no variable")
		}
		supplied.Variables = append(supplied.Variables, workload.Variable{Name: name, Value: value})
	}
	for _, f := range m.Files {
		if f.Mode > 0o777 {
			return fmt.Errorf("file %.80q has mode %o, expected permission bits", f.Path, f.Mode)
		}
		supplied.Files = append(supplied.Files, workload.File{Path: f.Path, Mode: uint16(f.Mode), Content: f.Content})
	}
	if _, err := workload.EncodeEnvironment(supplied); err != nil {
		return err
	}
	if err := permit.Variables(secretsOf(supplied)); err != nil {
		return err
	}
	i.supplied = supplied
	return nil
}

// secretsOf lists the variables of an environment as a process takes them.
func secretsOf(e *workload.Environment) []string {
	if e == nil {
		return nil
	}
	list := make([]string, 0, len(e.Variables))
	for _, v := range e.Variables {
		list = append(list, v.Name+"="+v.Value)
	}
	return list
}

// writeFiles puts the files of an environment below an instance's directory, owned by its user. What an earlier
// run left there is replaced.
func writeFiles(directory string, files []workload.File, identity bool, uid, gid uint32) error {
	root := filepath.Join(directory, dirFiles)
	if err := os.RemoveAll(root); err != nil {
		return fmt.Errorf("remove the files of the last run: %w", err)
	}
	for _, f := range files {
		path := filepath.Join(root, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(path), directoryMode); err != nil {
			return fmt.Errorf("make the directory of file %s: %w", f.Path, err)
		}
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("write file %s: %w", f.Path, err)
		}
		_, err = file.Write(f.Content)
		if err == nil { // before the file is another user's: runnerd has no CAP_FOWNER
			err = file.Chmod(os.FileMode(f.Mode))
		}
		if err == nil && identity {
			err = file.Chown(int(uid), int(gid))
		}
		if closed := file.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return fmt.Errorf("write file %s: %w", f.Path, err)
		}
	}
	return nil
}
