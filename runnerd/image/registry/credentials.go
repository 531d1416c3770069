package registry

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"colloid.net/runnerd/trust"
	"colloid.net/workload"
	"colloid.net/workload/syntax"
)

// Credentials are a user and a password for one registry.
type Credentials struct {
	Username string `json:"username"`
	Password string `json:"password"`
	// TokenHosts may see them too: servers that give tokens for this registry.
	TokenHosts []string `json:"token_hosts,omitempty"`
}

const credentialsMax = 256

// LoadCredentials reads the host's file of credentials. It must be protected like the policy, and others
// may not read it. An absent file is none. The format, by registry:
//
//	registry registry.example.com:5000 {
//	    username   builder
//	    password   "secret"
//	    token_host auth.example.com
//	}
func LoadCredentials(path string, owners trust.Users) (map[string]Credentials, error) {
	if path == "" {
		return nil, nil
	}
	file, _, err := owners.OpenFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	if info.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("credentials: everybody may read %s (mode %04o): chmod 0600 it", path, info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(file, syntax.SourceSizeMax+1))
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	return ParseCredentials(path, text)
}

// ParseCredentials reads the text of the file.
func ParseCredentials(file string, text []byte) (map[string]Credentials, error) {
	tree, err := syntax.Parse(file, text)
	if err != nil {
		return nil, err
	}
	var complaints syntax.Errors
	found := map[string]Credentials{}
	for i := range tree {
		s := &tree[i]
		if s.Name != "registry" || len(s.Arguments) != 1 || !s.Block {
			complaints.Add(syntax.Errorf(s.Position, "unexpected %s, expected registry HOST { username NAME; password WORD }",
				syntax.Quote(s.Name)))
			continue
		}
		host := hostName(s.Arguments[0].Text)
		if !workload.ValidRegistryHost(host) { // its password would be that of no registry, without a word
			complaints.Add(syntax.Errorf(s.Position, "registry is %s, expected HOST, HOST:PORT or [IPV6]:PORT", syntax.Quote(host)))
			continue
		}
		if _, twice := found[host]; twice || len(found) >= credentialsMax {
			complaints.Add(syntax.Errorf(s.Position, "registry %s is given twice, or there are more than %d", syntax.Quote(host),
				credentialsMax))
			continue
		}
		found[host] = parseEntry(s, host, &complaints)
	}
	if err := complaints.Err(); err != nil {
		return nil, err
	}
	return found, nil
}

func parseEntry(s *syntax.Statement, host string, complaints *syntax.Errors) (c Credentials) {
	if host == dockerName {
		c.TokenHosts = []string{"auth.docker.io"}
	}
	for i := range s.Body {
		body := &s.Body[i]
		if body.Block || len(body.Arguments) != 1 {
			complaints.Add(syntax.Errorf(body.Position, "%s needs one word", body.Name))
			continue
		}
		word := body.Arguments[0].Text
		switch body.Name {
		case "username":
			c.Username = word
		case "password":
			c.Password = word
		case "token_host":
			if !workload.ValidRegistryHost(word) {
				complaints.Add(syntax.Errorf(body.Position, "token_host is %s, expected HOST, HOST:PORT or [IPV6]:PORT", syntax.Quote(word)))
			}
			c.TokenHosts = append(c.TokenHosts, hostName(word))
		default:
			complaints.Add(syntax.Errorf(body.Position, "unknown statement %s, expected username, password or token_host",
				body.Name))
		}
	}
	if c.Username == "" || c.Password == "" {
		complaints.Add(syntax.Errorf(s.Position, "registry %s has no username or no password", syntax.Quote(host)))
	}
	return c
}
