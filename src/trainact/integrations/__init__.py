"""Callbacks for the trainers of other libraries; each module imports its trainer."""
