package cli

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"colloid.net/workload"
	"github.com/spf13/cobra"
)

// fileFlags are the flags of every command that reads configuration.
type fileFlags struct {
	files     []string
	variables []string
}

func (f *fileFlags) register(command *cobra.Command) {
	command.Flags().StringArrayVarP(&f.files, "file", "f", nil,
		"configuration file, - for standard input; may be repeated")
	registerVariables(command, &f.variables)
}

func registerVariables(command *cobra.Command, variables *[]string) {
	command.Flags().StringArrayVar(variables, "set", nil, "NAME=VALUE for ${NAME} in the file; may be repeated")
}

// desired is one workload as a file wants it.
type desired struct {
	key     string
	spec    *workload.Spec
	encoded []byte
	place   string // file:line
	note    string // for people, once everything is valid
	// environment holds secrets and files, plain, until the daemon has sealed them (F83).
	environment []byte
}

// load reads and checks every file completely. It returns either all workloads or one failure that
// lists everything that is wrong (F156).
func (a *app) load(flags fileFlags) ([]desired, error) {
	all, err := a.loadKeys(flags, a.prepare)
	if err == nil {
		err = a.resolveImages(all)
	}
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		a.talk("%s: no workloads in it", strings.Join(flags.files, ", "))
	}
	for _, d := range all {
		if d.note != "" {
			a.talk("%s", d.note)
		}
	}
	return all, nil
}

// named is the preparation of a block of which only the key counts.
func named(block workload.Block) (desired, error) {
	return desired{key: block.Key(), place: placeOf(block)}, nil
}

func placeOf(block workload.Block) string { return fmt.Sprintf("%s:%d", block.File, block.Line) }

func (a *app) loadKeys(flags fileFlags, prepare func(workload.Block) (desired, error)) ([]desired, error) {
	if len(flags.files) == 0 {
		return nil, fail(ExitUsage, "name a configuration file with -f FILE, or -f - for standard input")
	}
	variables, err := parseVariables(flags.variables)
	if err != nil {
		return nil, err
	}
	var all []desired
	var complaints []string
	places, used := map[string]string{}, map[string]bool{}
	options := workload.ParseOptions{Variables: variables, Used: func(name string) { used[name] = true }}
	for _, name := range flags.files {
		text, err := a.readInput(name)
		if err != nil {
			return nil, err
		}
		blocks, err := workload.Parse(printable(name), text, options)
		if err != nil {
			complaints = append(complaints, err.Error())
			continue
		}
		for _, block := range blocks {
			d, err := prepare(block)
			if err == nil && places[d.key] != "" {
				err = fmt.Errorf("%s: %s is already in %s", d.place, d.key, places[d.key])
			}
			if err != nil {
				complaints = append(complaints, err.Error())
				continue
			}
			places[d.key] = d.place
			all = append(all, d)
		}
	}
	if len(complaints) == 0 { // else not all of the files was read
		complaints = unusedVariables(variables, used, flags.files)
	}
	if len(complaints) > 0 {
		return nil, &failure{exit: ExitUsage, lines: append(complaints, "nothing was written")}
	}
	return all, nil
}

// unusedVariables complains about what --set gave for nothing: most often the name is misspelt, here or in
// the file.
func unusedVariables(variables map[string]string, used map[string]bool, files []string) (complaints []string) {
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if !used[name] {
			complaints = append(complaints, fmt.Sprintf("--set %s: ${%s} is nowhere in %s: leave it out, or correct the name",
				printable(name), printable(name), printable(strings.Join(files, ", "))))
		}
	}
	return complaints
}

func (a *app) prepare(block workload.Block) (desired, error) {
	d := desired{key: block.Key(), spec: block.Spec, place: placeOf(block)}
	if err := a.fillDigest(&d); err != nil {
		return d, fmt.Errorf("%s: %w", d.place, err)
	}
	if err := a.fetchSources(&d, block); err != nil {
		return d, err
	}
	if err := workload.CheckKey(d.key, d.spec); err != nil {
		return d, fmt.Errorf("%s: %w", d.place, err)
	}
	encoded, err := workload.Encode(d.spec)
	if err != nil {
		return d, fmt.Errorf("%s: %s: %w", d.place, d.key, err)
	}
	d.encoded = encoded
	return d, nil
}

// fillDigest pins a process workload without a digest to the file that is here, so that every cell
// runs the same binary or says that it has another one. A file that is not on this machine is left
// to the cells that have it.
func (a *app) fillDigest(d *desired) error {
	if d.spec.Runtime != workload.RuntimeProcess || d.spec.ImageDigest != [32]byte{} {
		return nil
	}
	digest, known := a.digests[d.spec.Image] // a thousand blocks may name one program
	if !known {
		var err error
		digest, err = digestOf(d.spec.Image)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s has no sha256 and %w", d.key, err)
		}
		if a.digests == nil {
			a.digests = map[string][sha256.Size]byte{}
		}
		a.digests[d.spec.Image] = digest
	}
	d.spec.ImageDigest = digest
	d.note = fmt.Sprintf("%s: pinned to the file here, sha256 %x", d.key, d.spec.ImageDigest)
	return nil
}

// digestOf hashes a program of this machine.
func digestOf(path string) (digest [sha256.Size]byte, err error) {
	// Not blocking: what has the name may be a pipe or a device, which has no end to hash up to.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return digest, fmt.Errorf("its file cannot be read: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return digest, fmt.Errorf("its file cannot be read: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() == 0 {
		return digest, fmt.Errorf("%s is no program (mode %v, %d bytes): name an executable file",
			path, info.Mode(), info.Size())
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return digest, fmt.Errorf("its file cannot be read: %w", err)
	}
	copy(digest[:], hash.Sum(nil))
	return digest, nil
}

func parseVariables(settings []string) (map[string]string, error) {
	variables := map[string]string{}
	for _, setting := range settings {
		name, value, ok := strings.Cut(setting, "=")
		if _, twice := variables[name]; !ok || name == "" || twice {
			return nil, fail(ExitUsage, "--set %q: write NAME=VALUE, each name once", setting)
		}
		variables[name] = value
	}
	return variables, nil
}
