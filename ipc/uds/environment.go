package uds

import "errors"

// EnvironmentRequest is the payload of CodeEnvironment: store u8, key length u8, key, plain environment as
// workload.EncodeEnvironment writes it. The answer is the digest, 32 bytes, that goes into the specification
// (F83). Without Store nothing is written: the digest tells whether a file differs from what the cluster
// holds.
type EnvironmentRequest struct {
	Store bool
	Key   string // of the workload
	Plain []byte
}

var errEnvironment = errors.New("uds: malformed environment request")

// Append encodes r. The key must have at most 255 bytes.
func (r EnvironmentRequest) Append(dst []byte) []byte {
	store := byte(0)
	if r.Store {
		store = 1
	}
	dst = append(dst, store, byte(len(r.Key)))
	return append(append(dst, r.Key...), r.Plain...)
}

// ParseEnvironmentRequest decodes what Append wrote; Plain points into payload.
func ParseEnvironmentRequest(payload []byte) (EnvironmentRequest, error) {
	if len(payload) < 2 || payload[0] > 1 || len(payload) < 2+int(payload[1]) {
		return EnvironmentRequest{}, errEnvironment
	}
	end := 2 + int(payload[1])
	return EnvironmentRequest{payload[0] == 1, string(payload[2:end]), payload[end:]}, nil
}
