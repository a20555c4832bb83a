//! What leaves a lane, and when: by age, by size, because everybody has read it; and closing what lies idle.
