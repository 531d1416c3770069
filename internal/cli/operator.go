package cli

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"colloid.net/ipc/grant"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

const (
	// environmentOperatorKey names the file with the operator's key.
	environmentOperatorKey = "COLLOID_OPERATOR_KEY"
	// grantLifetime is how long a grant holds.
	grantLifetime = time.Minute
	// keyFilePrefix begins the one line of the key file.
	keyFilePrefix = "colloid-operator-key-1 "
)

func (a *app) operatorCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "operator",
		Short: "Your key for exec and cp",
		Long: `Programs and files of an instance are open only to operators that its host knows. Each has a key in a file
of their own: COLLOID_OPERATOR_KEY, or colloid/operator.key in the configuration directory. The host's policy
(/etc/colloid/runnerd.policy) names the public half and the workloads:

  operator anna 5b1f...
  exec web db-*`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(
		&cobra.Command{
			Use:   "keygen",
			Short: "Make a key",
			Long: `Makes the file, which must not be there yet, and prints the line for the policy of each host. Whoever can
read the file is you.`,
			Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error { return a.makeOperatorKey() },
		},
		&cobra.Command{
			Use:   "show",
			Short: "Print the line for the policy of hosts",
			Args:  cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error {
				key, err := a.operatorKey()
				if err == nil {
					a.data("%s", a.operatorLine(key))
				}
				return err
			},
		},
	)
	return command
}

func (a *app) operatorKeyFile() (string, error) {
	if path := a.Variable(environmentOperatorKey); path != "" {
		return path, nil
	}
	base := a.Variable("XDG_CONFIG_HOME")
	if base == "" {
		home := a.Variable("HOME")
		if home == "" {
			return "", fail(ExitUsage, "neither %s nor HOME says where your operator key is", environmentOperatorKey)
		}
		base = filepath.Join(home, ".config")
	}
	return filepath.Join(base, "colloid", "operator.key"), nil
}

// operatorLine is the statement of a policy.
func (a *app) operatorLine(key ed25519.PrivateKey) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, a.Variable("USER"))
	if name == "" || len(name) > 64 {
		name = "operator"
	}
	return fmt.Sprintf("operator %s %x", name, key.Public())
}

func (a *app) makeOperatorKey() error {
	path, err := a.operatorKeyFile()
	if err != nil {
		return err
	}
	seed := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(seed) // never fails
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fail(ExitError, "%w", err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fail(ExitError, "%s is there already: `colloid operator show` prints its line; remove it to make another", path)
	}
	if err != nil {
		return fail(ExitError, "%w", err)
	}
	_, err = fmt.Fprintf(file, "%s%x\n", keyFilePrefix, seed)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fail(ExitError, "%w", err)
	}
	a.talk("colloid: key written to %s; add this line to /etc/colloid/runnerd.policy of each host, and one like "+
		"\"exec WORKLOAD\":", path)
	a.data("%s", a.operatorLine(ed25519.NewKeyFromSeed(seed)))
	return nil
}

// operatorKey reads the key, and refuses one that others can read.
func (a *app) operatorKey() (ed25519.PrivateKey, error) {
	path, err := a.operatorKeyFile()
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fail(ExitUsage, "you have no operator key (%s): make one with `colloid operator keygen`", path)
	}
	if err != nil {
		return nil, fail(ExitUsage, "%w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fail(ExitUsage, "%w", err)
	}
	if !info.Mode().IsRegular() { // to make a device or a directory one's own would be bad advice
		return nil, fail(ExitUsage, "%s is no file: name your operator key with $%s", path, environmentOperatorKey)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fail(ExitUsage, "%s may be read by others: make it yours with chmod 600", path)
	}
	text := make([]byte, 256)
	n, _ := file.Read(text)
	digits, found := strings.CutPrefix(strings.TrimSpace(string(text[:n])), keyFilePrefix)
	seed, err := hex.DecodeString(digits)
	if !found || err != nil || len(seed) != ed25519.SeedSize {
		return nil, fail(ExitUsage, "%s is no operator key: make one with `colloid operator keygen`", path)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// grant signs the permission for one program in a workload.
func (a *app) grant(key string) ([]byte, error) {
	private, err := a.operatorKey()
	if err != nil {
		return nil, err
	}
	g := grant.Grant{Workload: key, Expiry: time.Now().Add(grantLifetime)}
	_, _ = rand.Read(g.Nonce[:]) // never fails
	raw, err := grant.Sign(g, private)
	if err != nil {
		return nil, fail(ExitUsage, "%w", err)
	}
	return raw, nil
}
