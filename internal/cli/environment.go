package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"colloid.net/ipc/uds"
	"colloid.net/workload"
)

// fetchSources reads the secrets and files of a block into the environment that the daemon seals. No error
// shows a value (F83).
func (a *app) fetchSources(d *desired, block workload.Block) error {
	environment := new(workload.Environment)
	for _, source := range block.Sources {
		content, err := a.fetch(block.File, source)
		if err != nil {
			return fmt.Errorf("%s:%d: %s%s: %w", block.File, source.Line, source.Name, source.Path, err)
		}
		if source.Path != "" {
			environment.Files = append(environment.Files,
				workload.File{Path: source.Path, Mode: source.Mode, Content: content})
			continue
		}
		environment.Variables = append(environment.Variables, workload.Variable{Name: source.Name, Value: string(content)})
	}
	moveVariables(d.spec, environment)
	if environment.IsEmpty() {
		return nil
	}
	plain, err := workload.EncodeEnvironment(environment)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", d.place, d.key, err)
	}
	d.environment = plain
	d.spec.EnvironmentDigest = [32]byte{1} // as long as the real one, which the daemon computes
	return nil
}

// moveVariables seals the variables of a specification too when it is too long with them.
func moveVariables(spec *workload.Spec, environment *workload.Environment) {
	if len(spec.Environment) == 0 || workload.EncodedSize(spec) <= workload.SpecSizeMax {
		return
	}
	for _, variable := range spec.Environment {
		name, value, _ := bytes.Cut([]byte(variable), []byte("="))
		environment.Variables = append(environment.Variables, workload.Variable{Name: string(name), Value: string(value)})
	}
	spec.Environment = nil
}

func (a *app) fetch(configuration string, source workload.Source) ([]byte, error) {
	switch source.Origin {
	case workload.FromLiteral:
		return []byte(source.From), nil
	case workload.FromVariable:
		value := a.Variable(source.From)
		if value == "" {
			return nil, fmt.Errorf("variable %s is not set here, or empty", source.From)
		}
		return []byte(value), nil
	}
	name := source.From
	if !filepath.IsAbs(name) && configuration != "-" {
		name = filepath.Join(filepath.Dir(configuration), name)
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > workload.EnvironmentSizeMax {
		return nil, fmt.Errorf("%s is no regular file of at most %d bytes", name, workload.EnvironmentSizeMax)
	}
	content, err := os.ReadFile(name)
	if err == nil && source.Path == "" {
		content = bytes.TrimSuffix(content, []byte("\n")) // editors add it, passwords do not have it
	}
	return content, err
}

// seal has the daemon compute the digest of an environment and, with store, keep it.
func (s *session) seal(d *desired, store bool) error {
	if d.environment == nil {
		return nil
	}
	request := uds.EnvironmentRequest{Store: store, Key: d.key, Plain: d.environment}
	reply, err := s.client.Do(uds.CodeEnvironment, request.Append(nil))
	if err != nil {
		return s.explain(d.key, err)
	}
	if len(reply) != len(d.spec.EnvironmentDigest) {
		return fail(ExitError, "%s: the daemon's answer is not understood: are colloid and meshd of one version?", d.key)
	}
	d.spec.EnvironmentDigest = [32]byte(reply)
	encoded, err := workload.Encode(d.spec)
	if err != nil {
		return fail(ExitUsage, "%s: %s: %w", d.place, d.key, err)
	}
	d.encoded = encoded
	return nil
}
