package cli

import (
	"encoding/json"
	"errors"
	"fmt"

	"colloid.net/ipc/uds"
)

// conflictError is the answer to a write whose expectation did not hold.
type conflictError struct{ entries *uds.Entries }

func (e *conflictError) Error() string {
	return fmt.Sprintf("%s holds something else than was read", e.entries.Key)
}

// write sends SET, DELETE or RESOLVE. A conflict comes back as a conflictError.
func (s *session) write(code uds.Code, request uds.WriteRequest) error {
	_, err := s.client.Do(code, request.Append(nil))
	var conflict *uds.ConflictError
	if !errors.As(err, &conflict) {
		return err
	}
	entries := &uds.Entries{Key: request.Key}
	if err := json.Unmarshal(conflict.Payload, entries); err != nil {
		return fail(ExitConflict, "%s holds something else than was read", request.Key)
	}
	return &conflictError{entries}
}
