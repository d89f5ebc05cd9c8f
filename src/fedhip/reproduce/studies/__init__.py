"""The paper's tables and figures, one module a study."""
