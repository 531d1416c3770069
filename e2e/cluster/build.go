package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Appliance are the packages of the programs that make up a cell.
var Appliance = []string{"./cmd/colloid", "./cmd/meshd", "./cmd/runnerd", "./cmd/runnerd-shim", "./cmd/runnerd-wasm"}

// Build compiles packages of this module into a directory, statically, and returns it.
func Build(ctx context.Context, directory string, packages ...string) error {
	root, err := ModuleRoot()
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "go", append([]string{"build", "-o", directory + "/"}, packages...)...)
	command.Dir = root
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", strings.Join(packages, " "), err, output)
	}
	return nil
}

// BuildModule compiles a package to a WebAssembly module whose functions can be invoked.
func BuildModule(ctx context.Context, target, pkg string) error {
	root, err := ModuleRoot()
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "go", "build", "-buildmode=c-shared", "-o", target, pkg)
	command.Dir = root
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=wasip1", "GOARCH=wasm")
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, output)
	}
	return nil
}

// ModuleRoot finds the directory of go.mod above the working directory.
func ModuleRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no go.mod above %s", start)
		}
	}
}

// copyProgram copies an executable to where every user can run it.
func copyProgram(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Chmod(0o755), target.Close())
}
