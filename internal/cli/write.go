package cli

import (
	"colloid.net/ipc/uds"
)

// write sends SET, DELETE or RESOLVE. If the key holds something else than the request expects, the
// error is a *uds.ConflictError with what it holds.
func (s *session) write(code uds.Code, request uds.WriteRequest) error {
	_, err := s.client.Do(code, request.Append(nil))
	return err
}
