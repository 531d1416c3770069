package cell

import "fmt"

func (c *Cell) Debug() string {
	return fmt.Sprintf("%+v members=%d guests=%v wanted=%v sess=%+v gossip=%+v", c.counters, c.members.Len(), c.guests.list, c.sessionsWanted, c.sessions.Stats(), c.gossip.Stats())
}
