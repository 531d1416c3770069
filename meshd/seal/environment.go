package seal

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"

	"golang.org/x/crypto/chacha20poly1305"
)

// Labels of the keys for environments (F83).
const (
	labelEnvironmentDigest = "colloid v1 environment digest"
	labelEnvironment       = "colloid v1 environment"
)

// EnvironmentDigest names the content of a workload's environment within one cluster. Without the cluster's
// key nobody can test a guess against it.
func EnvironmentDigest(k Key, workload string, plain []byte) [32]byte {
	key := Derive(k, labelEnvironmentDigest)
	mac := hmac.New(sha256.New, key[:])
	mac.Write([]byte(workload))
	mac.Write([]byte{0})
	mac.Write(plain)
	return [32]byte(mac.Sum(nil))
}

// SealEnvironment encrypts an environment for the store. The nonce is the beginning of the digest, a
// pseudorandom function of all that is encrypted: equal content gives equal bytes, and different content
// never shares a nonce.
func SealEnvironment(k Key, workload string, plain []byte) (digest [32]byte, sealed []byte) {
	digest = EnvironmentDigest(k, workload, plain)
	return digest, environmentCipher(k).Seal(nil, digest[:chacha20poly1305.NonceSizeX], plain, digest[:])
}

// ErrEnvironment means that bytes are not the environment with the digest, or of another cluster.
var ErrEnvironment = errors.New("seal: environment does not open")

// OpenEnvironment decrypts what SealEnvironment made and checks that it is what the digest names.
func OpenEnvironment(k Key, workload string, digest [32]byte, sealed []byte) ([]byte, error) {
	plain, err := environmentCipher(k).Open(nil, digest[:chacha20poly1305.NonceSizeX], sealed, digest[:])
	if err != nil || EnvironmentDigest(k, workload, plain) != digest {
		return nil, ErrEnvironment
	}
	return plain, nil
}

type sealing interface {
	Seal(dst, nonce, plain, additional []byte) []byte
	Open(dst, nonce, sealed, additional []byte) ([]byte, error)
}

func environmentCipher(k Key) sealing {
	key := Derive(k, labelEnvironment)
	aead, err := chacha20poly1305.NewX(key[:])
	if err != nil {
		panic("seal: " + err.Error()) // only for a key of another length
	}
	return aead
}
